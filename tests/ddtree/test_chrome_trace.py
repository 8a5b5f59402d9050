"""The stages of a run as trace events: moments and durations in microseconds."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "app"))

from fake_engine import FakeEngine

from ddtree.chrome_trace import STAGES, step_events, track_names
from ddtree.settings import Settings
from ddtree.trace import Step, StepError, Timing


def steps() -> list[Step]:
    decoder = FakeEngine().new_decoder(Settings(max_new_tokens=100))
    run = decoder.start("p")
    made = [decoder.step(run) for _ in range(4)]
    times = [
        Timing(
            draft=1.5, build=0.25, encode=0.125, verify=4, sample=0.5, commit=0.0625, other=0.0625, total=6.5
        ),
        Timing(
            draft=2, build=None, encode=None, verify=None, sample=None, commit=None, other=None, total=8.25
        ),
        None,
        Timing(draft=1, build=1, encode=1, verify=1, sample=1, commit=1, other=1, total=7),
    ]
    made = [step.model_copy(update={"timing_ms": time}) for step, time in zip(made, times, strict=True)]
    failed = {"error": StepError(code="draft_fault", message="NaN"), "accept": None, "tree": None}
    made[2] = made[2].model_copy(update=failed)
    return made


def test_steps_stand_one_after_the_other_and_their_stages_inside_them() -> None:
    events = list(step_events(steps()))
    assert {event["ph"] for event in events} == {"X"}
    track = {tid: [event for event in events if event["tid"] == tid] for tid in (1, 2)}
    assert [(event["name"], event["ts"], event["dur"]) for event in track[1]] == [
        ("step 0", 0, 6500),
        ("step 1", 6500, 8250),
        ("step 3", 14750, 7000),
    ]
    assert [(event["name"], event["ts"], event["dur"]) for event in track[2][:8]] == [
        ("draft", 0, 1500),
        ("build", 1500, 250),
        ("encode", 1750, 125),
        ("verify", 1875, 4000),
        ("sample", 5875, 500),
        ("commit", 6375, 62.5),
        ("other", 6437.5, 62.5),
        ("draft", 6500, 2000),
    ]
    assert [event["name"] for event in track[2][8:]] == list(STAGES)
    assert track[1][0]["args"] == {"nodes": 2, "accepted": 1, "committed": 2}
    assert track[2][7]["args"] == {"step": 1}


def test_no_two_events_of_a_track_overlap() -> None:
    for tid in (1, 2):
        mine = [event for event in step_events(steps()) if event["tid"] == tid]
        for one, following in pairwise(mine):
            assert one["ts"] + one["dur"] <= following["ts"]


def test_the_process_and_both_tracks_are_named() -> None:
    assert [(event["ph"], event["name"], event["args"]["name"]) for event in track_names("run x")] == [
        ("M", "process_name", "run x"),
        ("M", "thread_name", "steps"),
        ("M", "thread_name", "stages"),
    ]
