"""Where a run goes on from another one. Light on purpose: the service makes forks before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fork:
    """`token_ids` are the run's prompt and what its steps before `step` committed: the new run's prompt."""

    run_id: str
    step: int
    token_ids: tuple[int, ...]
