"""A run's stages in the Trace Event format, which Perfetto and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("X": a complete event
with `ts` and `dur` in microseconds). What was measured are durations, not moments: steps stand one after the
other from 0 on, and within a step its stages in the order they run. Waiting, pace and streaming are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ddtree.trace import Step, Timing

STAGES = ("draft", "build", "encode", "verify", "sample", "commit", "other")
PROCESS, STEP_TRACK, STAGE_TRACK = 1, 1, 2


def track_names(process: str) -> Iterator[dict[str, Any]]:
    """Metadata events: the process by the run's name, its two tracks."""
    yield _named("process_name", STEP_TRACK, process)
    yield _named("thread_name", STEP_TRACK, "steps")
    yield _named("thread_name", STAGE_TRACK, "stages")


def step_events(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    """An event a timed step, and one for each of its stages; a step that failed was not timed."""
    began_us = 0.0
    for step in steps:
        timing = step.timing_ms
        if timing is None:
            continue
        yield _event(f"step {step.index}", STEP_TRACK, began_us, timing.total, _figures(step))
        yield from _stages(step, timing, began_us)
        began_us += 1000 * timing.total


def _stages(step: Step, timing: Timing, began_us: float) -> Iterator[dict[str, Any]]:
    for name in STAGES:
        spent_ms = getattr(timing, name)
        if spent_ms is None:  # one graph ran them all
            continue
        yield _event(name, STAGE_TRACK, began_us, spent_ms, {"step": step.index})
        began_us += 1000 * spent_ms


def _figures(step: Step) -> dict[str, Any]:
    return {
        "nodes": 0 if step.tree is None else len(step.tree.token_ids),
        "accepted": None if step.accept is None else step.accept.accept_token_num,
        "committed": 0 if step.committed is None else len(step.committed.token_ids),
    }


def _event(name: str, track: int, began_us: float, spent_ms: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "step" if track == STEP_TRACK else "stage",
        "ph": "X",
        "ts": round(began_us, 3),
        "dur": round(1000 * spent_ms, 3),
        "pid": PROCESS,
        "tid": track,
        "args": args,
    }


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}
