"""What viewers read from: the recent frames of every live run, once for all who watch it.

All of this lives on the event loop. A run's frames go into one bounded log; a viewer is a position in it. So
nobody is waited for, a viewer that reads nothing costs nothing but its position, and what a slow one missed
is known to the step.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from app.protocol import RunState, StateFrame
from app.recorder import Entry, Opened, Publication
from ddtree.trace import Trace

LOG_FRAMES = 128
LOG_CHARS = 8 * 1024 * 1024
"""A run's log holds the newest frames, at most so many and (but for the newest) so large together."""


class Woken(Protocol):
    """A viewer: told that there may be something to send."""

    def wake(self) -> None: ...

    def model_changed(self) -> None: ...


class Channel:
    """A live run's head, its recent frames, and who watches."""

    def __init__(self, run_id: str, head: Trace) -> None:
        self.run_id = run_id
        self.head = head
        self.steps = 0
        self.state: RunState = "waiting"
        self.latest: dict[str, Entry] = {}  # the newest `state` and `settings` frames
        self.log: deque[Entry] = deque()
        self.viewers: set[Woken] = set()
        self._chars = 0

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        self._chars += len(entry.text)
        while len(self.log) > 1 and (len(self.log) > LOG_FRAMES or self._chars > LOG_CHARS):
            self._chars -= len(self.log.popleft().text)
        if entry.kind == "step":
            self.steps += 1
        elif entry.kind == "state":
            self.state = StateFrame.model_validate_json(entry.text).state
        if entry.kind in ("state", "settings"):
            self.latest[entry.kind] = entry
        for viewer in self.viewers:
            viewer.wake()

    def after(self, seq: int) -> Entry | None:
        """The first logged frame past `seq`; None: there is none yet."""
        if not self.log or self.log[-1].seq <= seq:
            return None
        return self.log[max(0, seq + 1 - self.log[0].seq)]

    def seq_before_step(self, step: int) -> int | None:
        """The seq after which the log has `step` (done or still to come) and all that followed the step
        before; None: the log starts later."""
        first = self.steps
        for entry in reversed(self.log):
            if entry.step is not None:
                if entry.step < step:
                    return entry.seq
                first = entry.step
        if first > step:
            return None
        return self.log[0].seq - 1 if self.log else 0


class Hub:
    """The live runs' channels, and all viewers."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.viewers: set[Woken] = set()

    def deliver(self, publications: list[Publication]) -> None:
        for publication in publications:
            if isinstance(publication, Opened):
                self.channels[publication.run_id] = Channel(publication.run_id, publication.head)
                publication.opened(publication.run_id)
                continue
            channel = self.channels.get(publication.run_id)
            if channel is None:
                continue
            channel.append(publication)
            if publication.kind == "finished":
                channel.state = "finished"
                del self.channels[publication.run_id]  # those who watch keep it until they have seen its end

    def model_changed(self) -> None:
        for viewer in self.viewers:
            viewer.model_changed()
