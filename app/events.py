"""What happens to runs, in order: the worker says it, the recorder stores it and makes frames of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.protocol import RunState
from ddtree.settings import Settings
from ddtree.trace import Step, Summary, Trace


@dataclass(frozen=True, slots=True)
class RunBegan:
    run_id: str
    head: Trace  # without steps and summary
    opened: Callable[[str], None]  # called with run_id on the event loop, once the run can be watched


@dataclass(frozen=True, slots=True)
class StepDone:
    run_id: str
    step: Step


@dataclass(frozen=True, slots=True)
class StateChanged:
    run_id: str
    state: RunState
    place: int | None = None  # in the queue, from 1, while waiting
    progress: float | None = None  # 0..1 of the prompt, while in prefill


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    run_id: str
    settings: Settings
    pace: float | None
    from_step: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    run_id: str
    summary: Summary
    message: str | None = None  # why, where the server is at fault


Event = RunBegan | StepDone | StateChanged | SettingsChanged | RunEnded
