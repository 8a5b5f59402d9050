"""Running a plan: rounds of one prompt, in which every lane decodes it in turn.

A round is what is compared: its runs stand next to each other in time, and which lane goes first rotates from
round to round. Before the first one every lane decodes a few tokens that nobody counts; garbage is collected
between rounds, never inside one. Where only acceptance is asked for, none of this is done, and rounds may be
dealt out to several processes.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.baselines import Baselines
from app.bench.lanes import Lane, parse_lane
from app.bench.store import Plan, PlannedPrompt, Record
from ddtree.decoder import TreeDecoder
from ddtree.engine import LoadedEngine
from ddtree.prompt import encode_prompt, prompt_token_ids
from ddtree.settings import Settings
from ddtree.statistics import Statistics, run_statistics

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class _Job:
    """One run to be made."""

    lane: Lane
    prompt: PlannedPrompt
    temperature: float
    repeat: int
    seed: int
    new_tokens: int

    def record(self, **measured: Any) -> Record:
        return Record(
            prompt=self.prompt.id,
            lane=self.lane.label,
            temperature=self.temperature,
            repeat=self.repeat,
            seed=self.seed,
            **measured,
        )


class Runner:
    """Decodes rounds of `plan`. `traces`: a folder that every run of this project's lanes is written to.
    Raises ValueError for a lane that what is loaded cannot honour."""

    def __init__(
        self, plan: Plan, engine: LoadedEngine, baselines: Baselines, traces: Path | None = None
    ) -> None:
        self.plan = plan
        self.lanes = [parse_lane(label) for label in plan.lanes]
        self._engine = engine
        self._baselines = baselines
        self._traces = traces
        self._encoding = _resolved(engine, plan.new_tokens)
        for lane in self.lanes:
            TreeDecoder(engine.target, engine.drafters, lane.settings, engine.not_used)

    def warm_up(self) -> Iterator[str]:
        """Runs every lane once, yielding what comes next; unmeasured."""
        if self.plan.acceptance_only:
            return
        for lane in self.lanes:
            yield f"warming up {lane.label}"
            for temperature in self.plan.temperatures:
                self._run(lane, 0, temperature, 0, min(WARM_UP_TOKENS, self.plan.new_tokens))

    def round(self, repeat: int, index: int) -> list[Record]:
        """Every lane at every temperature on one prompt."""
        first = (index + repeat) % len(self.lanes)
        records = []
        with _undisturbed(not self.plan.acceptance_only):
            for temperature in self.plan.temperatures:
                for lane in self.lanes[first:] + self.lanes[:first]:
                    records.append(self._run(lane, index, temperature, repeat, self.plan.new_tokens))
        return records

    def _run(self, lane: Lane, index: int, temperature: float, repeat: int, new_tokens: int) -> Record:
        seed = self.plan.seed + repeat * len(self.plan.prompts) + index
        job = _Job(lane, self.plan.prompts[index], temperature, repeat, seed, new_tokens)
        return self._own(job, lane.settings) if lane.settings is not None else self._baseline(job)

    def _own(self, job: _Job, settings: Settings) -> Record:
        """A run of this project's decoder."""
        settings = settings.updated(temperature=job.temperature, seed=job.seed, max_new_tokens=job.new_tokens)
        decoder = TreeDecoder(self._engine.target, self._engine.drafters, settings, self._engine.not_used)
        began = time.perf_counter()
        steps = list(decoder.decode(job.prompt.text))
        wall_s = time.perf_counter() - began
        statistics = run_statistics(steps)
        trace = decoder.trace()
        assert trace.summary is not None
        if self._traces is not None:
            (self._traces / self._trace_name(job)).write_text(trace.to_json(), encoding="utf-8")
        return job.record(
            wall_s=self._timed(wall_s),
            step_s=self._timed(statistics.stage_ms.get("total", 0.0) / 1e3),
            finish=trace.summary.finish_reason,
            lossy=trace.summary.lossy,
            error=next((step.error.message for step in steps if step.error is not None), None),
            statistics=statistics,
        )

    def _baseline(self, job: _Job) -> Record:
        """A run of transformers' generate: of its steps only the number is known."""
        target = self._engine.target
        began = time.perf_counter()
        ids = encode_prompt(target, job.prompt.text, self._encoding)
        text, passes = self._baselines.generate(
            job.lane, ids, job.new_tokens, target.stop_token_ids, job.temperature, job.seed
        )
        wall_s = time.perf_counter() - began
        return job.record(
            wall_s=self._timed(wall_s),
            step_s=None,
            finish="stop" if text[-1] in target.stop_token_ids else "length",
            statistics=Statistics(
                steps=passes, committed=len(text), accepted_drafts=max(0, len(text) - passes)
            ),
        )

    def _trace_name(self, job: _Job) -> str:
        """Lane by its place in the plan, so that any label makes a file name."""
        prompt = re.sub(r"[^A-Za-z0-9_-]", "_", job.prompt.id)[:80]
        lane = self.plan.lanes.index(job.lane.label)
        return f"{prompt}-lane{lane}-t{job.temperature:g}-r{job.repeat}.json"

    def _timed(self, seconds: float) -> float | None:
        return None if self.plan.acceptance_only else seconds


def token_counter(engine: LoadedEngine) -> Callable[[str], int]:
    """How many tokens a text has with the template around it."""
    settings = _resolved(engine, 1)

    def count(text: str) -> int:
        return len(prompt_token_ids(engine.target, text, settings))

    return count


def _resolved(engine: LoadedEngine, new_tokens: int) -> Settings:
    """Default settings with nothing left to choose: how this target's prompts are encoded."""
    return TreeDecoder(engine.target, engine.drafters).resolve(Settings(max_new_tokens=new_tokens))


@contextmanager
def _undisturbed(wanted: bool) -> Iterator[None]:
    """No garbage collection inside; it is done before."""
    if not wanted:
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
