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

from app.errors import shown
from app.hub import Hub
from app.protocol import ErrorFrame, Finished, Frame, Lagging, RunState, Started, StateFrame
from app.recorder import step_frame
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
        self._ready: deque[str] = deque()
        self._told = 0  # seq of the last frame made ready; `started` is 0
        self._live = False
        self._ended = False

    def follow(self, viewer: Viewer) -> None:
        if self._channel is not None:
            self._channel.viewers.add(viewer)

    def leave(self, viewer: Viewer) -> None:
        if self._channel is not None:
            self._channel.viewers.discard(viewer)

    async def next(self) -> str | None:
        """The next frame to send; None: there is none yet, or none will come."""
        if not self._ready and not self._ended:
            if self._row is None:
                await self._begin()
            elif self._live or not await self._replay(self._row):
                self._take_live()
        return self._ready.popleft() if self._ready else None

    async def _begin(self) -> None:
        self._row = await run_in_threadpool(self._store.run, self.run_id)
        if self._row is None:
            self._ended = True
            message = f"there is no run {shown(self.run_id)}"
            self._ready.append(ErrorFrame(code="not_found", message=message).model_dump_json())
        elif self._channel is not None:
            self._start(self._channel.head, self._channel.state, self._channel.steps)
        else:
            head = Trace.model_validate_json(await run_in_threadpool(self._store.head, self._row))
            self._start(head, self._row.state, self._row.steps)

    def _start(self, head: Trace, state: RunState, steps: int) -> None:
        self._next_step = min(self._next_step, steps)
        frame = Started(
            seq=0,
            run_id=self.run_id,
            state=state,
            created_at=head.created_at,
            prompt=head.prompt,
            settings=head.settings,
            drafter=head.drafter,
            target=head.target,
            engine=head.engine,
            stop_token_ids=head.stop_token_ids,
            forked_from=head.forked_from,
            steps=steps,
        )
        self._ready.append(frame.model_dump_json())

    # ---- catching up ----

    async def _replay(self, row: RunRow) -> bool:
        """Make the next stored steps ready, or the end of a run that is not live. False: the log goes on."""
        seq = None if self._channel is None else self._channel.seq_before_step(self._next_step)
        if seq is None:
            steps = await run_in_threadpool(self._store.steps, row, self._next_step, REPLAY_CHUNK)
            for step in steps:
                self._tell(step.seq, step_frame(self.run_id, step.seq, step.json))
                self._next_step = step.step + 1
            if steps:
                return True
            if self._channel is None:
                self._finish(row)
                return True
        else:
            self._tell(seq, None)
        self._live = True
        return False

    def _finish(self, row: RunRow) -> None:
        self._ended = True
        seq = self._told + 1
        if row.summary is not None:
            summary = Summary.model_validate_json(row.summary)
            frame: Frame = Finished(seq=seq, run_id=self.run_id, summary=summary)
        else:
            frame = StateFrame(seq=seq, run_id=self.run_id, state=row.state)
        self._ready.append(frame.model_dump_json())

    def _tell(self, seq: int, text: str | None) -> None:
        """Make a frame ready, after the newest state and settings that were passed over on the way to it."""
        latest = {} if self._channel is None else self._channel.latest
        for kept in sorted(latest.values(), key=lambda entry: entry.seq):
            if self._told < kept.seq < seq or (text is None and kept.seq == seq):
                self._ready.append(kept.text)
        if text is not None:
            self._ready.append(text)
        self._told = max(self._told, seq)

    # ---- live ----

    def _take_live(self) -> None:
        assert self._channel is not None
        entry = self._channel.after(self._told)
        if entry is None:
            return
        if entry.seq > self._told + 1:  # frames left the log before they were sent: go on with the newest
            entry = self._channel.log[-1]
            last = self._channel.steps - 1 if entry.step is None else entry.step - 1
            if last >= self._next_step:
                frame = Lagging(run_id=self.run_id, **{"from": self._next_step}, to=last)
                self._ready.append(frame.model_dump_json(by_alias=True))
                self._next_step = last + 1
        self._tell(entry.seq, entry.text)
        if entry.step is not None:
            self._next_step = entry.step + 1
        self._ended = entry.kind == "finished"


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
