"""What else needs the model, in short turns between the steps of the runs: checks of a step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from app.engine import LoadedEngine
from app.protocol import ErrorFrame

log = logging.getLogger("ddtree.app")


class Task(Protocol):
    def begin(self, engine: LoadedEngine) -> None: ...
    def advance(self) -> bool:
        """One turn; whether there is more to do."""

    def fail(self, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Examine:
    """A command to the worker: begin this task."""

    task: Task
    refuse: Callable[[ErrorFrame], None]


class Tasks:
    """Tasks that have begun, each taking its turn in turn. Lives on the worker's thread."""

    def __init__(self) -> None:
        self._begun: deque[Task] = deque()

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(self, task: Task, engine: LoadedEngine) -> None:
        task.begin(engine)
        self._begun.append(task)

    def take_turn(self) -> None:
        """One turn of the one whose turn it is; a failure ends that one alone."""
        if not self._begun:
            return
        task = self._begun.popleft()
        try:
            if task.advance():
                self._begun.append(task)
        except Exception as error:
            log.exception("a check failed")
            task.fail(f"the check failed: {type(error).__name__}: {error}")

    def stop(self) -> None:
        for task in self._begun:
            task.fail("the server was stopped")
