"""`ddtree bench`: flags to a plan, the plan to records, the records to a table, a JSON file and a page."""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.bench.lanes import DEFAULT_ACCEPTANCE_LANES, DEFAULT_LANES, Lane, parse_lanes
from app.bench.prompts import BenchPrompt, fit, of_categories, read_prompts, sample
from app.bench.report import report
from app.bench.results import results, table
from app.bench.store import Plan, PlannedPrompt, Record, Store
from app.exits import DONE, FAILED, INTERRUPTED
from ddtree.statistics import pooled

if TYPE_CHECKING:
    from app.bench.baselines import Baselines
    from app.bench.rounds import Rounds
    from ddtree.engine import LoadedEngine

Say = Callable[[str], None]


def run(arguments: argparse.Namespace, say: Say) -> int:
    """Raises ValueError or OSError when the command cannot be carried out as given."""
    _check(arguments)
    lanes, prompts = _lanes(arguments, say), _prompts(arguments)
    from app.bench.rounds import Machinery, Rounds

    machinery = Machinery(
        model=arguments.model,
        draft_model=arguments.draft_model,
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        jobs=arguments.jobs,
        traces=arguments.traces,
    )
    engine = machinery.load(say)
    baselines = machinery.baselines(engine)
    lanes = _available(lanes, baselines, arguments.lanes is not None, say)
    plan = _plan(arguments, lanes, prompts, engine)
    say(f"prompts: {' '.join(prompt.id for prompt in plan.prompts)}")
    cut = sum(prompt.cut for prompt in plan.prompts)
    if cut:
        say(f"{cut} of {len(plan.prompts)} prompts cut to {plan.prompt_limit} tokens")
    with _stoppable(say) as stopped:
        rounds = Rounds(machinery, plan, engine, baselines, stopped)  # refuses before anything is written
        store = Store.open(arguments.out, plan)
        try:
            finished = _decode(store, rounds, say)
        finally:
            store.close()
    found = _conclude(store)
    print(table(found))
    for error in found["errors"]:
        say(f"{error['lane']} on prompt {error['prompt']} ended in an error: {error['message']}")
    say(f"written: {store.folder / 'results.json'}, {store.folder / 'report.html'}")
    if not finished:
        say("stopped; the same command goes on from here")
        return INTERRUPTED
    return FAILED if found["errors"] else DONE


def _check(arguments: argparse.Namespace) -> None:
    for flag in ("sample", "prompt_limit", "new_tokens", "repeats", "jobs", "threads"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise ValueError(f"--{flag.replace('_', '-')} {value}: use 1 or more")
    if arguments.seed < 0:
        raise ValueError(f"--seed {arguments.seed}: use 0 or more")
    for temperature in arguments.temperatures:
        if not 0 <= temperature <= 5:
            raise ValueError(f"--temperatures {temperature:g}: use 0 to 5")
    if len(set(arguments.temperatures)) < len(arguments.temperatures):
        raise ValueError("--temperatures: one is given twice; leave it out")
    if arguments.jobs > 1 and not arguments.acceptance_only:
        raise ValueError(f"--jobs {arguments.jobs}: runs side by side cannot be timed; add --acceptance-only")


def _lanes(arguments: argparse.Namespace, say: Say) -> list[Lane]:
    """Where something is timed, the lane that the others are compared with is always there."""
    default = DEFAULT_ACCEPTANCE_LANES if arguments.acceptance_only else DEFAULT_LANES
    lanes = parse_lanes(list(arguments.lanes or default))
    if not arguments.acceptance_only and not any(lane.plain for lane in lanes):
        say("lane autoregressive added: the ratios are to it")
        lanes = parse_lanes(["autoregressive", *(lane.label for lane in lanes)])
    return lanes


def _available(lanes: list[Lane], baselines: Baselines, asked_for: bool, say: Say) -> list[Lane]:
    """Lanes that can be run here, loaded. One that was asked for and cannot be raises ValueError."""
    kept = []
    for lane in lanes:
        try:
            baselines.load(lane)
            kept.append(lane)
        except (ValueError, OSError) as error:
            if asked_for:
                raise ValueError(f"lane {lane.label!r}: {error}") from None
            say(f"lane {lane.label} left out: {error}")
    return kept


def _prompts(arguments: argparse.Namespace) -> list[BenchPrompt]:
    prompts = read_prompts(arguments.prompts)
    if arguments.categories:
        prompts = of_categories(prompts, arguments.categories)
    return prompts if arguments.sample is None else sample(prompts, arguments.sample)


def _plan(
    arguments: argparse.Namespace, lanes: list[Lane], prompts: list[BenchPrompt], engine: LoadedEngine
) -> Plan:
    from app.bench.machine import cpu_name
    from app.bench.runner import token_counter
    from ddtree.describe import engine_info

    count, room = token_counter(engine), engine.target.max_context - arguments.new_tokens
    if arguments.prompt_limit > room:
        raise ValueError(
            f"--prompt-limit {arguments.prompt_limit} and --new-tokens {arguments.new_tokens} do not fit "
            f"{engine.target.name}'s context of {engine.target.max_context}; use less"
        )
    fitted = [fit(prompt, count, arguments.prompt_limit) for prompt in prompts]
    return Plan(
        lanes=[lane.label for lane in lanes],
        temperatures=arguments.temperatures,
        repeats=arguments.repeats or (1 if arguments.acceptance_only else 3),
        new_tokens=arguments.new_tokens,
        prompt_limit=arguments.prompt_limit,
        acceptance_only=arguments.acceptance_only,
        seed=arguments.seed,
        model=engine.target.name,
        drafters=[drafter.name for drafter in engine.drafters],
        machine=cpu_name(),
        engine=engine_info(engine.target),
        prompts=[PlannedPrompt.model_validate(asdict(prompt)) for prompt in fitted],
    )


def _decode(store: Store, rounds: Rounds, say: Say) -> bool:
    """Every round that is not on disk yet, each put there whole; whether all of them are there now."""
    plan = store.plan
    todo = [where for where in plan.rounds if not _complete(store, *where)]
    if len(todo) < len(plan.rounds):
        say(f"going on: {len(plan.rounds) - len(todo)} of {len(plan.rounds)} rounds are there")
    began, done = time.monotonic(), 0
    for records in rounds.run(todo, say):
        store.add(records)
        done += 1
        left = (time.monotonic() - began) / done * (len(todo) - done)
        at = len(plan.rounds) - len(todo) + done
        say(f"{at}/{len(plan.rounds)} prompt {records[0].prompt}: {_tau(records)}; {_duration(left)} left")
    return done == len(todo)


def _complete(store: Store, repeat: int, index: int) -> bool:
    """Runs of a round are compared with each other: one that was broken off is run again as a whole."""
    plan = store.plan
    prompt = plan.prompts[index].id
    return all(
        (prompt, lane, temperature, repeat) in store.records
        for lane in plan.lanes
        for temperature in plan.temperatures
    )


def _tau(records: list[Record]) -> str:
    """The round in a few words."""
    total = pooled(record.statistics for record in records)
    return f"{total.committed} tokens in {total.steps} steps"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _conclude(store: Store) -> dict[str, Any]:
    """Writes results.json and report.html from the records of whole rounds."""
    whole = {
        (repeat, store.plan.prompts[index].id)
        for repeat, index in store.plan.rounds
        if _complete(store, repeat, index)
    }
    kept = [record for record in store.records.values() if (record.repeat, record.prompt) in whole]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = results(store.plan, kept, now)
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    (store.folder / "results.json").write_text(text, encoding="utf-8")
    (store.folder / "report.html").write_text(report(found), encoding="utf-8")
    return found


@contextmanager
def _stoppable(say: Say) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; a second one interrupts at once. Only the main thread can be asked."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("stopping after the prompt in work; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
