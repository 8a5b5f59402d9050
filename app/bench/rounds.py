"""A bench's rounds one after the other in this process, or dealt out to several that each have the models."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.baselines import Baselines, untouched_model
from app.bench.runner import Runner
from app.bench.store import Plan, Record
from ddtree.drafters.assistant import load_assistant
from ddtree.engine import LoadedEngine, load_engine
from ddtree.models import drafter_folder

Where = tuple[int, int]
"""Repeat and index of the prompt."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """Which models, on what; every process loads its own. threads: of all jobs together, None: all cores."""

    model: str | None
    draft_model: str | None
    device: str
    dtype: str
    threads: int | None
    jobs: int
    traces: Path | None

    def load(self, say: Callable[[str], None]) -> LoadedEngine:
        """Raises ValueError or OSError for what cannot be loaded."""
        if self.traces is not None:
            self.traces.mkdir(parents=True, exist_ok=True)
        threads = self.threads
        if self.jobs > 1:
            threads = max(1, (threads or len(os.sched_getaffinity(0))) // self.jobs)
        engine = load_engine(
            model=self.model,
            draft_model=self.draft_model,
            device=self.device,
            dtype=self.dtype,
            threads=threads,
            progress=lambda text, share: say(text if share is None else f"{text} {share:.0%}"),
        )
        for note in engine.target.notes:
            say(f"note: {note}")
        if engine.not_used:
            say(f"drafter not used: {engine.not_used}")
        return engine

    def baselines(self, engine: LoadedEngine) -> Baselines:
        """Nothing is loaded yet."""
        target = engine.target

        def assistant(name: str | None) -> Any:
            named = name or self.draft_model
            if named == "none":
                raise ValueError("there is no drafter (--draft-model none); give the lane its draft-model")
            return load_assistant(drafter_folder(named, target.name), target.dtype).to(target.device)

        return Baselines(lambda: untouched_model(self.model, target.dtype, target.device), assistant)


class Rounds:
    """`run(todo)` yields the records of each round; after `stopped()` no round is begun."""

    def __init__(
        self,
        machinery: Machinery,
        plan: Plan,
        engine: LoadedEngine,
        baselines: Baselines,
        stopped: Callable[[], bool],
    ) -> None:
        self._machinery = machinery
        self._plan = plan
        self._stopped = stopped
        self._runner = Runner(plan, engine, baselines, machinery.traces)

    def run(self, todo: list[Where], say: Callable[[str], None]) -> Iterator[list[Record]]:
        if self._machinery.jobs > 1:
            yield from self._dealt_out(todo)
            return
        if todo:
            for what in self._runner.warm_up():
                say(what)
        for where in todo:
            if self._stopped():
                return
            yield self._runner.round(*where)

    def _dealt_out(self, todo: list[Where]) -> Iterator[list[Record]]:
        jobs, waiting, running = self._machinery.jobs, iter(todo), set[Future[list[Record]]]()
        plan = self._plan.model_dump_json()
        with ProcessPoolExecutor(
            jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_job,
            initargs=(self._machinery, plan),
        ) as pool:
            while True:
                while len(running) < jobs and not self._stopped():
                    where = next(waiting, None)
                    if where is None:
                        break
                    running.add(pool.submit(_round, self._machinery, plan, where))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()


def _begin_job(machinery: Machinery, plan_json: str) -> None:
    """Ctrl-C is the first process's to answer; the models are loaded before the first round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _job_runner(machinery, plan_json)


@functools.cache
def _job_runner(machinery: Machinery, plan_json: str) -> Runner:
    plan = Plan.model_validate_json(plan_json)
    engine = machinery.load(lambda text: None)
    baselines = machinery.baselines(engine)
    runner = Runner(plan, engine, baselines, machinery.traces)
    for lane in runner.lanes:
        baselines.load(lane)
    return runner


def _round(machinery: Machinery, plan_json: str, where: Where) -> list[Record]:
    return _job_runner(machinery, plan_json).round(*where)
