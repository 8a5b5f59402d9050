"""The one thread that owns the model and its device.

It loads the engine after the server already answers, and then does two things in turn: it obeys the commands
that came in, and it lets the next run whose turn it is take one step (or one chunk of its prompt). Commands
arrive through a queue and are never waited for; what happens leaves as events. So nothing outside ever waits
for the model, and a run goes on whether or not anybody watches.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from app.engine import Description, LoadedEngine, LoadEngine
from app.events import Event, RunBegan, RunEnded, SettingsChanged, StateChanged, StepDone
from app.protocol import ErrorFrame, RunState
from app.refusals import Refused, refusal
from app.schedule import Schedule, Session
from app.settings import ServerSettings
from app.tasks import Examine, Tasks
from ddtree.fork import Fork
from ddtree.settings import Settings

log = logging.getLogger("ddtree.app")

Refuse = Callable[[ErrorFrame], None]
"""Tells the asker why not; called on the worker's thread."""

_CLOSE_WAIT_S = 5.0
_TELL_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What is loaded, or how far loading is. One object, replaced as a whole."""

    state: Literal["loading", "ready", "failed"]
    message: str = ""
    progress: float | None = None
    description: Description | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    run_id: str
    prompt: str
    settings: Settings
    pace: float | None
    paused: bool
    opened: Callable[[str], None]
    refuse: Refuse
    fork: Callable[[], tuple[str, Fork]] | None = None  # (prompt, fork), read when its turn comes


@dataclass(frozen=True, slots=True)
class Change:
    """`pace` is None for "unchanged", else a tuple of the new one (None: full speed)."""

    run_id: str
    settings: dict[str, Any]
    pace: tuple[float | None] | None
    refuse: Refuse


@dataclass(frozen=True, slots=True)
class Control:
    run_id: str
    action: Literal["pause", "resume", "step", "stop"]
    refuse: Refuse


Command = Begin | Change | Control | Examine


class Worker:
    def __init__(
        self,
        settings: ServerSettings,
        load: LoadEngine,
        emit: Callable[[Event], None],
        status_changed: Callable[[], None],
    ) -> None:
        """`emit` and `status_changed` are called on the worker's thread."""
        self.status = ModelStatus("loading", "starting")
        self._settings = settings
        self._load = load
        self._emit = emit
        self._status_changed = status_changed
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._schedule = Schedule(settings.max_decoding)
        self._tasks = Tasks()
        self._engine: LoadedEngine | None = None
        self._closing = False
        self._told_at = 0.0  # when viewers were last told how far loading is
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)

    # ---- called from other threads ----

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Cancel what is live and end. Loading, or a model call of more than a few seconds, is left."""
        self._closing = True
        self._commands.put(None)
        self._thread.join(0 if self.status.state == "loading" else _CLOSE_WAIT_S)

    @property
    def busy(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def post(self, command: Command) -> None:
        self._commands.put(command)

    @property
    def backlog(self) -> int:
        """Commands that have not been obeyed yet."""
        return self._commands.qsize()

    @property
    def decoding(self) -> int:
        return len(self._schedule.decoding)

    @property
    def waiting(self) -> int:
        return len(self._schedule.waiting)

    @property
    def paused(self) -> int:
        return len(self._schedule.paused)

    # ---- the thread ----

    def _work(self) -> None:
        self._load_engine()
        while True:
            wait_s = self._schedule.wait_s(time.monotonic(), self._settings.pause_limit_s)
            for command in self._take(0 if self._tasks else wait_s):
                if command is None:
                    for session in list(self._schedule):
                        self._end(session, cancel=True)
                    self._tasks.stop()
                    return
                self._obey(command)
            now = time.monotonic()
            for session in [
                s for s in self._schedule.paused if s.paused_at + self._settings.pause_limit_s <= now
            ]:
                self._end(session, cancel=True)
            due = self._schedule.next_due(now)
            if due is not None:
                self._advance(due)
            self._tasks.take_turn()

    def _load_engine(self) -> None:
        began = time.monotonic()
        try:
            self._engine = self._load(self._settings, self._loading)
        except Exception as error:
            if self._closing:
                return
            expected = isinstance(error, (ValueError, OSError))
            message = str(error) if expected else f"{type(error).__name__}: {error}"
            log.error("the model cannot be loaded: %s", message, exc_info=not expected)
            self._set_status(ModelStatus("failed", message))
            return
        description = self._engine.description
        for drafter in description.drafters:
            if drafter.not_used is not None:
                log.warning("drafter not used: %s", drafter.not_used)
                break
        engine = description.engine
        log.info(
            "ready after %.1f s: %s, %s on %s, threads: %d, drafts with %s",
            time.monotonic() - began,
            description.target.name,
            engine.dtype,
            engine.device,
            engine.threads,
            description.default_drafter,
        )
        self._set_status(ModelStatus("ready", description=description))

    def _loading(self, message: str, progress: float | None) -> None:
        now = time.monotonic()
        if message != self.status.message:
            log.info("loading: %s", message)
        elif now < self._told_at + _TELL_EVERY_S:
            return
        self._told_at = now
        self._set_status(ModelStatus("loading", message, progress))

    def _set_status(self, status: ModelStatus) -> None:
        self.status = status
        self._status_changed()

    def _take(self, wait_s: float | None) -> list[Command | None]:
        """The commands that are there; waits up to `wait_s` seconds (None: without end) for the first."""
        taken: list[Command | None] = []
        try:
            if wait_s != 0:
                taken.append(self._commands.get(timeout=wait_s))
            while True:
                taken.append(self._commands.get_nowait())
        except queue.Empty:
            return taken

    # ---- commands ----

    def _obey(self, command: Command) -> None:
        try:
            if isinstance(command, Begin):
                self._begin(command)
                return
            if isinstance(command, Examine):
                if self._engine is None:
                    raise Refused("not_ready", self.status.message)
                self._tasks.begin(command.task, self._engine)
                return
            session = self._schedule.find(command.run_id)
            if session is None:
                command.refuse(
                    ErrorFrame(code="no_run", message=f"run {command.run_id} is not live: start another")
                )
            elif isinstance(command, Change):
                self._change(session, command)
            else:
                self._control(session, command.action)
        except Exception as error:
            command.refuse(refusal(error))

    def _begin(self, command: Begin) -> None:
        if self._engine is None:
            raise Refused("not_ready", self.status.message)
        live = sum(1 for _ in self._schedule)
        most = self._settings.max_decoding + self._settings.max_waiting
        if live >= most:
            raise Refused("queue_full", f"{live} runs are live, which is the most: stop one first")
        decoder = self._engine.new_decoder(command.settings)
        run = decoder.start(command.prompt) if command.fork is None else decoder.start(*command.fork())
        session = Session(
            command.run_id,
            decoder,
            run,
            prefill=decoder.prefill(run),
            pace=command.pace,
            steps_wanted=0 if command.paused else None,
        )
        self._emit(RunBegan(command.run_id, decoder.head(run), command.opened))
        self._schedule.enqueue(session)
        self._settle()

    def _change(self, session: Session, command: Change) -> None:
        session.decoder.settings = session.decoder.settings.updated(**command.settings)
        if command.pace is not None:
            (session.pace,) = command.pace
        in_force = session.decoder.resolve(session.decoder.settings)
        in_force = in_force.model_copy(update={"seed": session.run.settings.seed})
        self._emit(SettingsChanged(session.run_id, in_force, session.pace, session.steps))

    def _control(self, session: Session, action: Literal["pause", "resume", "step", "stop"]) -> None:
        if action == "stop":
            self._end(session, cancel=True)
        elif action == "pause":
            self._pause(session)
        else:
            session.steps_wanted = 1 if action == "step" else None
            if session in self._schedule.paused:
                self._schedule.enqueue(session)
                self._settle()

    # ---- one turn ----

    def _advance(self, session: Session) -> None:
        try:
            if session.prefill is not None:
                self._prefill(session)
            else:
                self._step(session)
        except Exception as error:
            log.exception("run %s failed", session.run_id)
            session.run.finish_reason = "error"
            self._end(session, message=f"the run failed: {type(error).__name__}: {error}")

    def _prefill(self, session: Session) -> None:
        assert session.prefill is not None
        share = next(session.prefill, None)
        if share is not None:
            self._emit(StateChanged(session.run_id, "prefill", progress=share))
            return
        session.prefill = None
        if session.steps_wanted == 0:
            self._pause(session)
        else:
            self._say(session, "running")

    def _step(self, session: Session) -> None:
        session.last_step_at = time.monotonic()
        step = session.decoder.step(session.run)
        session.steps += 1
        self._emit(StepDone(session.run_id, step))
        if session.run.finish_reason is not None:
            self._end(session)
        elif session.steps_wanted is not None:
            session.steps_wanted -= 1
            if session.steps_wanted <= 0:
                self._pause(session)

    def _pause(self, session: Session) -> None:
        if session.state == "paused":
            return
        self._schedule.pause(session, time.monotonic())
        self._say(session, "paused")
        self._settle()

    def _end(self, session: Session, cancel: bool = False, message: str | None = None) -> None:
        if cancel:
            session.run.cancel()
        self._schedule.leave(session)
        self._emit(RunEnded(session.run_id, session.decoder.summary(session.run), message))
        self._settle()

    def _settle(self) -> None:
        """Free slots are taken, and everyone who waits is told a place that changed."""
        for session in self._schedule.fill():
            self._say(session, "running" if session.prefill is None else "prefill")
        for place, session in enumerate(self._schedule.waiting, 1):
            self._say(session, "waiting", place)

    def _say(self, session: Session, state: RunState, place: int | None = None) -> None:
        if (session.state, session.place) != (state, place):
            session.state, session.place = state, place
            self._emit(StateChanged(session.run_id, state, place))
