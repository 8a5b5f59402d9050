"""One viewer's outbound side: what is sent to a websocket next.

Replies come first, then the run being watched: its `started` frame, the steps that the viewer lacks out of
the store at the viewer's own pace, and then the live log. A viewer that the live log has left behind is told
which steps it missed and goes on with the newest frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from starlette.concurrency import run_in_threadpool

from app.hub import Hub
from app.protocol import ErrorFrame, Finished, Frame, Lagging, Started, StateFrame
from app.recorder import Entry, step_frame
from app.runs import RunRow, RunStore
from ddtree.trace import Summary, Trace

MAX_REPLIES = 256
"""Replies that may wait to be sent; a viewer that asks and does not read loses the oldest."""

REPLAY_CHUNK = 8
"""Steps read from the store at a time."""


class Watch:
    """The frames of one run for one viewer, from the step after `after` on."""

    def __init__(self, run_id: str, after: int, hub: Hub, store: RunStore) -> None:
        self.run_id = run_id
        self._next_step = after + 1
        self._store = store
        self._channel = hub.channels.get(run_id)
        self._row: RunRow | None = None
        self._started = False
        self._ended = False
        self._seq: int | None = None  # of the last live frame; None: not live yet
        self._stored_seq = 0  # of the last frame out of the store
        self._ready: deque[str] = deque()
        self._snapshots: deque[Entry] = deque()  # state and settings at the beginning, not sent yet

    def follow(self, viewer: Viewer) -> None:
        if self._channel is not None:
            self._channel.viewers.add(viewer)

    def leave(self, viewer: Viewer) -> None:
        if self._channel is not None:
            self._channel.viewers.discard(viewer)

    async def next(self) -> str | None:
        """The next frame to send; None: there is none yet, or none will come."""
        if self._ready:
            return self._ready.popleft()
        if self._ended:
            return None
        if not self._started:
            self._started = True
            return await self._begin()
        if self._seq is None and not await self._replay():
            self._go_live()
        if not self._ready and self._seq is not None:
            self._live(self._seq)
        return self._ready.popleft() if self._ready else None

    # ---- beginning ----

    async def _begin(self) -> str:
        self._row = await run_in_threadpool(self._store.run, self.run_id)
        if self._row is None:
            self._ended = True
            return ErrorFrame(code="not_found", message=f"there is no run {self.run_id}").model_dump_json()
        if self._channel is not None:
            channel = self._channel
            self._snapshots = deque(sorted(channel.latest.values(), key=lambda entry: entry.seq))
            return self._started_frame(channel.head, channel.steps, self._row)
        head = Trace.model_validate_json(await run_in_threadpool(self._store.head, self._row))
        return self._started_frame(head, self._row.steps, self._row)

    def _started_frame(self, head: Trace, steps: int, row: RunRow) -> str:
        self._next_step = min(self._next_step, steps)
        frame = Started(
            seq=0,
            run_id=self.run_id,
            state=row.state if self._channel is None else self._channel.state,
            created_at=head.created_at,
            prompt=head.prompt,
            settings=head.settings,
            drafter=head.drafter,
            target=head.target,
            engine=head.engine,
            stop_token_ids=head.stop_token_ids,
            steps=steps,
        )
        return frame.model_dump_json()

    # ---- catching up ----

    async def _replay(self) -> bool:
        """Make the next stored steps ready; False: nothing is missing before the live log."""
        assert self._row is not None
        if self._channel is not None and self._channel.seq_before_step(self._next_step) is not None:
            return False
        steps = await run_in_threadpool(self._store.steps, self._row, self._next_step, REPLAY_CHUNK)
        for step in steps:
            self._take_snapshots(step.seq)
            self._ready.append(step_frame(self.run_id, step.seq, step.json))
            self._next_step = step.step + 1
            self._stored_seq = step.seq
        if steps:
            return True
        if self._channel is None:
            self._finish(self._row)
            return True
        return False

    def _take_snapshots(self, seq: int) -> None:
        while self._snapshots and self._snapshots[0].seq < seq:
            self._ready.append(self._snapshots.popleft().text)

    def _finish(self, row: RunRow) -> None:
        """The end of a run that is not live."""
        self._ended = True
        seq = self._stored_seq + 1
        frame: Frame
        if row.summary is not None:
            frame = Finished(seq=seq, run_id=self.run_id, summary=Summary.model_validate_json(row.summary))
        else:
            frame = StateFrame(seq=seq, run_id=self.run_id, state=row.state)
        self._ready.append(frame.model_dump_json())

    def _go_live(self) -> None:
        if self._channel is None:
            return
        seq = self._channel.seq_before_step(self._next_step)
        self._seq = 0 if seq is None else seq
        self._take_snapshots(self._seq + 1)
        self._snapshots.clear()  # the others are in the log still

    # ---- live ----

    def _live(self, seq: int) -> None:
        assert self._channel is not None
        entry = self._channel.after(seq)
        if entry is None:
            return
        if entry.seq > seq + 1:
            entry = self._skip(seq)
        self._ready.append(entry.text)
        self._seq = entry.seq
        if entry.step is not None:
            self._next_step = entry.step + 1
        self._ended = entry.kind == "finished"

    def _skip(self, seq: int) -> Entry:
        """Frames left the log before they were sent: tell which steps, and go on with the newest frame."""
        assert self._channel is not None
        newest = self._channel.log[-1]
        last = self._channel.steps - 1 if newest.step is None else newest.step - 1
        if last >= self._next_step:
            frame = Lagging(run_id=self.run_id, **{"from": self._next_step}, to=last)
            self._ready.append(frame.model_dump_json(by_alias=True))
            self._next_step = last + 1
        for kept in sorted(self._channel.latest.values(), key=lambda entry: entry.seq):
            if seq < kept.seq < newest.seq:
                self._ready.append(kept.text)
        return newest


class Viewer:
    """What one websocket is sent. `send_all` runs until it is cancelled or the socket fails."""

    def __init__(self, hub: Hub, store: RunStore, hello: Callable[[], str]) -> None:
        self._hub = hub
        self._store = store
        self._hello = hello
        self._hello_due = True
        self._replies: deque[str] = deque(maxlen=MAX_REPLIES)
        self._watch: Watch | None = None
        self._wake = asyncio.Event()
        hub.viewers.add(self)

    def close(self) -> None:
        self._hub.viewers.discard(self)
        if self._watch is not None:
            self._watch.leave(self)

    def wake(self) -> None:
        self._wake.set()

    def model_changed(self) -> None:
        self._hello_due = True
        self._wake.set()

    def say(self, frame: ErrorFrame) -> None:
        self._replies.append(frame.model_dump_json())
        self._wake.set()

    def watch(self, run_id: str, after: int) -> None:
        """From now on the frames of this run are sent, and no others."""
        if self._watch is not None:
            self._watch.leave(self)
        self._watch = Watch(run_id, after, self._hub, self._store)
        self._watch.follow(self)
        self._wake.set()

    async def send_all(self, send: Callable[[str], Awaitable[None]]) -> None:
        while True:
            self._wake.clear()
            text = await self._next()
            if text is None:
                await self._wake.wait()
            else:
                await send(text)

    async def _next(self) -> str | None:
        if self._hello_due:
            self._hello_due = False
            return self._hello()
        if self._replies:
            return self._replies.popleft()
        watch = self._watch
        text = None if watch is None else await watch.next()
        return text if watch is self._watch else await self._next()  # it was replaced meanwhile
