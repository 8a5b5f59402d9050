"""What a viewer is sent, however decoding and reading interleave: nothing twice, nothing lost untold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fake_engine import FakeEngine, FakeRun
from hypothesis import given, settings
from hypothesis import strategies as st

import app.hub
from app.hub import Channel, Hub
from app.protocol import ErrorFrame, StateFrame
from app.recorder import Entry, Opened, step_frame
from app.runs import RunRow, StoredStep
from app.viewers import MAX_REPLIES, Viewer, Watch
from ddtree.settings import Settings

DECODER = FakeEngine().new_decoder(Settings())
RUN: FakeRun = DECODER.start("p")
HEAD = DECODER.head(RUN)


def in_a_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In a thread of its own: while Playwright is open, the main thread has a running loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(scenario())).result()


class Story:
    """One run as the recorder would tell it: a store of steps and the live channel, in step."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.stored: list[StoredStep] = []
        self.seq = 1
        self.summary: str | None = None
        self.hub.deliver([Opened("r", HEAD, lambda run_id: None)])

    def tell(self, kind: Any) -> None:
        if self.summary is not None:
            return
        step = len(self.stored) if kind == "step" else None
        text = json.dumps({"type": kind, "seq": self.seq})
        if kind == "step":
            self.stored.append(StoredStep(len(self.stored), self.seq, "{}"))
            text = step_frame("r", self.seq, "{}")
        elif kind == "state":
            text = StateFrame(seq=self.seq, run_id="r", state="running").model_dump_json()
        elif kind == "finished":
            self.summary = DECODER.summary(RUN).model_dump_json()
        self.hub.deliver([Entry("r", kind, self.seq, step, text)])
        self.seq += 1

    # what a viewer asks of the store

    def run(self, run_id: str) -> RunRow | None:
        if run_id != "r":
            return None
        state = "running" if self.summary is None else "finished"
        return RunRow(1, "r", "", state, False, "p", "t", "m", len(self.stored), 0, False, self.summary)

    def head(self, row: RunRow) -> str:
        return HEAD.to_json()

    def steps(self, row: RunRow, first: int, limit: int) -> list[StoredStep]:
        return self.stored[first : first + limit]


async def drained(watch: Watch) -> list[dict[str, Any]]:
    frames = []
    while (text := await watch.next()) is not None:
        frames.append(json.loads(text))
    return frames


EVENTS = st.lists(st.sampled_from(["step"] * 6 + ["state", "settings", "read", "read", "stall"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(before=EVENTS, during=EVENTS, after=st.integers(-1, 30), log=st.integers(2, 6), ends=st.booleans())
def test_every_step_comes_once_or_is_told_as_missed(
    before: list[str], during: list[str], after: int, log: int, ends: bool
) -> None:
    async def scenario() -> None:
        story = Story()
        for event in before:
            if event in ("step", "state", "settings"):
                story.tell(event)
        watch = Watch("r", after, story.hub, story)  # type: ignore[arg-type]
        frames: list[dict[str, Any]] = []
        there = len(story.stored)
        for event in during:
            if event == "read":
                text = await watch.next()
                frames += [] if text is None else [json.loads(text)]
            elif event != "stall":
                story.tell(event)
        frames += await drained(watch)
        if ends:
            story.tell("finished")
            frames += await drained(watch)
        assert frames[0]["type"] == "started"
        seqs = [frame["seq"] for frame in frames if "seq" in frame]
        assert seqs == sorted(set(seqs))
        got = [story_step(story, frame["seq"]) for frame in frames if frame["type"] == "step"]
        missed = [i for f in frames if f["type"] == "lagging" for i in range(f["from"], f["to"] + 1)]
        first = min(after + 1, frames[0]["steps"])
        assert there <= frames[0]["steps"]
        assert sorted(got + missed) == list(range(first, len(story.stored)))
        for kind in ("state", "settings"):  # the newest of each is known in the end
            told = [seq for seq, k in kinds(story) if k == kind]
            shown = [frame["seq"] for frame in frames if frame["type"] == kind]
            assert not told or shown[-1:] == told[-1:]
        assert (frames[-1]["type"] == "finished") is ends

    def kinds(story: Story) -> list[tuple[int, str]]:
        channel = channels[-1]
        return [(entry.seq, entry.kind) for entry in channel.latest.values()]

    channels: list[Channel] = []
    original = Channel.__init__

    def remembering(self: Channel, *arguments: Any) -> None:
        original(self, *arguments)
        channels.append(self)

    kept, app.hub.LOG_FRAMES = app.hub.LOG_FRAMES, log
    Channel.__init__ = remembering  # type: ignore[method-assign]
    try:
        in_a_loop(scenario)
    finally:
        app.hub.LOG_FRAMES = kept
        Channel.__init__ = original  # type: ignore[method-assign]


def story_step(story: Story, seq: int) -> int:
    (step,) = [stored.step for stored in story.stored if stored.seq == seq]
    return step


def test_the_log_is_bounded_in_characters_but_keeps_the_newest() -> None:
    channel = Channel("r", HEAD)
    for seq in range(1, 40):
        channel.append(Entry("r", "step", seq, seq - 1, "x" * (app.hub.LOG_CHARS // 4)))
    assert len(channel.log) == 4 and channel.log[-1].seq == 39
    channel.append(Entry("r", "step", 40, 39, "x" * (2 * app.hub.LOG_CHARS)))
    assert [entry.seq for entry in channel.log] == [40]


def test_replies_of_a_viewer_that_does_not_read_are_bounded() -> None:
    async def scenario() -> None:
        viewer = Viewer(Hub(), Story(), lambda: '"hello"')  # type: ignore[arg-type]
        for number in range(MAX_REPLIES + 50):
            viewer.say(ErrorFrame(code="bad_message", message=str(number)))
        assert len(viewer._replies) == MAX_REPLIES
        assert await viewer._next() == '"hello"'
        assert json.loads(await viewer._next() or "")["message"] == "50"

    in_a_loop(scenario)


def test_an_unknown_run_is_told_and_nothing_follows() -> None:
    async def scenario() -> None:
        story = Story()
        frames = await drained(Watch("nothing", -1, story.hub, story))  # type: ignore[arg-type]
        assert [(frame["type"], frame["code"]) for frame in frames] == [("error", "not_found")]

    in_a_loop(scenario)
