"""Whose turn it is, without threads and clocks."""

from __future__ import annotations

import math

from fake_engine import FakeEngine

from app.schedule import Schedule, Session
from ddtree.settings import Settings


def session(name: str, pace: float | None = None) -> Session:
    decoder = FakeEngine().new_decoder(Settings())
    return Session(name, decoder, decoder.start("p"), prefill=None, pace=pace, steps_wanted=None)


def admitted(schedule: Schedule, *sessions: Session) -> list[str]:
    for each in sessions:
        schedule.enqueue(each)
    return [each.run_id for each in schedule.fill()]


def test_slots_go_to_those_who_wait_longest() -> None:
    schedule = Schedule(2)
    a, b, c, d = (session(name) for name in "abcd")
    assert admitted(schedule, a, b, c, d) == ["a", "b"]
    schedule.pause(a, now=1.0)
    assert [each.run_id for each in schedule.fill()] == ["c"]
    schedule.enqueue(a)  # it lost its slot: to the end of the line
    schedule.leave(b)
    assert [each.run_id for each in schedule.fill()] == ["d"]
    assert [each.run_id for each in schedule.waiting] == ["a"]
    assert schedule.find("a") is a and schedule.find("b") is None


def test_steps_are_taken_in_turn() -> None:
    schedule = Schedule(3)
    admitted(schedule, *(session(name) for name in "abc"))
    turns = [schedule.next_due(0.0) for _ in range(7)]
    assert [each.run_id for each in turns if each] == list("abcabca")


def test_a_paced_run_waits_for_its_moment_and_others_do_not() -> None:
    schedule = Schedule(2)
    paced, free = session("paced", pace=4), session("free")
    admitted(schedule, paced, free)
    assert schedule.next_due(10.0) is paced
    paced.last_step_at = 10.0
    assert [schedule.next_due(10.1), schedule.next_due(10.2)] == [free, free]
    assert schedule.next_due(10.25) is paced


def test_how_long_there_is_nothing_to_do() -> None:
    schedule = Schedule(1)
    assert schedule.wait_s(0.0, pause_limit_s=600) is None
    paced = session("paced", pace=4)
    admitted(schedule, paced)
    assert schedule.wait_s(0.0, pause_limit_s=600) == 0.0
    paced.last_step_at = 10.0
    assert math.isclose(schedule.wait_s(10.05, pause_limit_s=600) or 0, 0.2)
    schedule.pause(paced, now=11.0)
    assert schedule.wait_s(12.0, pause_limit_s=600) == 599.0
