"""From what happened to what is kept and shown: one thread, in order, off the decoding thread.

Each batch of events becomes one commit, and is shown only afterwards: a step that anybody saw survives a
`kill -9`. A step is serialised once, for the store and for every viewer alike.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from app.events import Event, RunBegan, RunEnded, StateChanged, StepDone
from app.metrics import Metrics
from app.protocol import ErrorFrame, Finished, SettingsFrame, StateFrame
from app.runs import RunStore, StoreError
from ddtree.trace import Trace

log = logging.getLogger("ddtree.app")

MAX_PENDING = 256
"""Events that may wait for the disk; past them the worker waits, so that memory is bounded."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that can be watched from now on."""

    run_id: str
    head: Trace
    opened: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A frame of a run, ready to be sent. `step` is its index where it is one."""

    run_id: str
    kind: Literal["step", "settings", "state", "finished", "error"]
    seq: int
    step: int | None
    text: str


Publication = Opened | Entry


@dataclass(slots=True)
class _Open:
    """What the recorder knows of a run that has not ended."""

    model: str
    next_seq: int = 1  # 0 is the `started` frame, which each viewer gets its own of


def step_frame(run_id: str, seq: int, step_json: str) -> str:
    """A `step` frame around a step that is JSON already."""
    return f'{{"type":"step","seq":{seq},"run_id":"{run_id}","step":{step_json}}}'


class Recorder:
    def __init__(
        self,
        store: RunStore,
        metrics: Metrics,
        publish: Callable[[list[Publication]], None],
        give_up: Callable[[str], None],
    ) -> None:
        """Both are called on the recorder's thread; `give_up(run_id)` when a run can no longer be stored."""
        self._store = store
        self._metrics = metrics
        self._publish = publish
        self._give_up = give_up
        self._events: queue.Queue[Event | None] = queue.Queue(MAX_PENDING)
        self._runs: dict[str, _Open] = {}
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Store and publish what is pending, and end."""
        self._events.put(None)
        self._thread.join()

    def put(self, event: Event) -> None:
        self._events.put(event)

    def _work(self) -> None:
        while True:
            batch = [self._events.get()]
            while batch[-1] is not None and not self._events.empty():
                batch.append(self._events.get_nowait())
            events = [event for event in batch if event is not None]
            if events:
                self._record(events)
            if batch[-1] is None:
                return

    def _record(self, events: list[Event]) -> None:
        publications: list[Publication] = []
        writes: list[Callable[[], None]] = []
        for event in events:
            write, entries = self._made(event)
            writes.append(write)
            publications += entries
        try:
            with self._store.transaction():
                for write in writes:
                    write()
        except StoreError as error:
            log.error("%s", error)
            publications += self._not_stored(events, error)
        self._publish(publications)

    def _not_stored(self, events: list[Event], error: StoreError) -> list[Publication]:
        """The runs of a batch that was not stored end here; their viewers see what there was, and why."""
        failed: list[Publication] = []
        for run_id in {event.run_id for event in events}:
            frame = ErrorFrame(code="internal", message=f"the run is stopped, because {error}")
            failed.append(Entry(run_id, "error", self._seq(run_id), None, frame.model_dump_json()))
            self._give_up(run_id)
        return failed

    def _seq(self, run_id: str) -> int:
        run = self._runs.get(run_id)
        if run is None:
            return 0
        run.next_seq += 1
        return run.next_seq - 1

    def _made(self, event: Event) -> tuple[Callable[[], None], list[Publication]]:
        """How one event is written to the store, and what is shown of it afterwards."""
        store, run_id = self._store, event.run_id
        if isinstance(event, RunBegan):
            self._runs[run_id] = _Open(event.head.target.name)
            return partial(store.begin_run, run_id, event.head, "waiting"), [
                Opened(run_id, event.head, event.opened)
            ]
        if isinstance(event, RunEnded):
            return partial(store.finish_run, run_id, event.summary), self._ended(event)
        seq = self._seq(run_id)
        if isinstance(event, StepDone):
            json = event.step.model_dump_json()
            self._metrics.step(self._runs[run_id].model, event.step)
            entry = Entry(run_id, "step", seq, event.step.index, step_frame(run_id, seq, json))
            return partial(store.add_step, run_id, event.step, seq, json), [entry]
        if isinstance(event, StateChanged):
            state = StateFrame(
                seq=seq, run_id=run_id, state=event.state, place=event.place, progress=event.progress
            )
            return partial(store.set_state, run_id, event.state), [
                Entry(run_id, "state", seq, None, state.model_dump_json())
            ]
        settings = SettingsFrame(
            seq=seq, run_id=run_id, settings=event.settings, pace=event.pace, from_step=event.from_step
        )
        return _nothing, [Entry(run_id, "settings", seq, None, settings.model_dump_json())]

    def _ended(self, event: RunEnded) -> list[Publication]:
        run_id = event.run_id
        self._metrics.finished(self._runs[run_id].model, event.summary)
        entries: list[Publication] = []
        if event.message is not None:
            error = ErrorFrame(code="internal", message=event.message)
            entries.append(Entry(run_id, "error", self._seq(run_id), None, error.model_dump_json()))
        finished = Finished(seq=self._seq(run_id), run_id=run_id, summary=event.summary)
        entries.append(Entry(run_id, "finished", finished.seq, None, finished.model_dump_json()))
        del self._runs[run_id]
        return entries


def _nothing() -> None:
    """A change of settings is kept by the steps that follow it."""
