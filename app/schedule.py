"""Whose turn it is: at most so many runs decode at once, step by step in turn; others wait in a queue."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from app.engine import Decoder
from app.protocol import RunState


@dataclass(eq=False, slots=True)
class Session:
    """A live run, as the worker sees it. Times are time.monotonic() seconds."""

    run_id: str
    decoder: Decoder
    run: Any
    prefill: Iterator[float] | None  # None once it is done
    pace: float | None  # steps a second at most
    steps_wanted: int | None  # pause after so many more; None: go on
    state: RunState = "waiting"
    place: int | None = None
    steps: int = 0
    last_step_at: float = -math.inf
    paused_at: float = math.inf

    @property
    def due(self) -> float:
        """When the next step may begin."""
        if self.pace is None or self.prefill is not None:
            return -math.inf
        return self.last_step_at + 1 / self.pace


class Schedule:
    """The live sessions: each is decoding, waiting for one of the slots, or paused (and holds no slot)."""

    def __init__(self, max_decoding: int) -> None:
        self._max_decoding = max_decoding
        self.decoding: deque[Session] = deque()
        self.waiting: deque[Session] = deque()
        self.paused: list[Session] = []

    def __iter__(self) -> Iterator[Session]:
        return chain(self.decoding, self.waiting, self.paused)

    def find(self, run_id: str) -> Session | None:
        return next((session for session in self if session.run_id == run_id), None)

    def enqueue(self, session: Session) -> None:
        """A new session, or a paused one, wants to decode."""
        self.leave(session)
        session.paused_at = math.inf
        self.waiting.append(session)

    def pause(self, session: Session, now: float) -> None:
        self.leave(session)
        session.paused_at = now
        self.paused.append(session)

    def leave(self, session: Session) -> None:
        for place in (self.decoding, self.waiting, self.paused):
            if session in place:
                place.remove(session)

    def fill(self) -> list[Session]:
        """Give free slots to those who wait longest; returns who got one."""
        admitted = []
        while self.waiting and len(self.decoding) < self._max_decoding:
            admitted.append(self.waiting.popleft())
            self.decoding.append(admitted[-1])
        return admitted

    def next_due(self, now: float) -> Session | None:
        """Whose step it is; that one stands last in line afterwards."""
        for session in self.decoding:
            if session.due <= now:
                self.decoding.remove(session)
                self.decoding.append(session)
                return session
        return None

    def wait_s(self, now: float, pause_limit_s: float) -> float | None:
        """Seconds until there is something to do without being told; None: nothing will come by itself."""
        moments = [session.due for session in self.decoding]
        moments += [session.paused_at + pause_limit_s for session in self.paused]
        return max(0.0, min(moments) - now) if moments else None
