"""Checks of a step: jobs between the steps of runs, with progress, cancellable, refused with a reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from fake_engine import FakeEngine, slow
from fake_server import FakeServer, Serve

from ddtree.goodness import fit
from ddtree.lossless import Difference, GreedyComparison, Progress, RowDifference, SamplerFit, Verdict
from ddtree.trace import Step

LIMIT_S = 20.0


class Scripted:
    """In place of ddtree.lossless.check_step: `turns` of progress, then a verdict."""

    def __init__(self, turns: int = 3, seconds: float = 0.0, fault: Exception | None = None) -> None:
        self.turns, self.seconds, self.fault = turns, seconds, fault
        self.asked: list[Any] = []
        self.done = 0
        self.left = threading.Event()

    def __call__(self, *asked: Any) -> Iterator[Any]:
        self.asked = list(asked)
        for turn in range(self.turns):
            time.sleep(self.seconds)
            self.done = turn + 1
            yield Progress("draws", turn + 1, self.turns)
        if self.fault is not None:
            raise self.fault
        counts, probs = torch.tensor([60, 40]), torch.tensor([0.5, 0.5], dtype=torch.float64)
        rows = [RowDifference(0, 1e-4, 7, 2e-4)]
        greedy = GreedyComparison(5, Difference(5, 3, 4, 0.25))
        yield Verdict(asked[3], asked[4], [SamplerFit(None, 0, fit(counts, probs))], rows, greedy)


def ran(server: FakeServer, **content: Any) -> str:
    """A run that has finished: 6 tokens in 3 steps."""
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 6, **content})
        client.until("finished")
    return run_id


def start(server: FakeServer, run_id: str, step: int, **asked: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/api/runs/{run_id}/steps/{step}/lossless", json=asked)


def until(server: FakeServer, check_id: str, *states: str) -> dict[str, Any]:
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        view: dict[str, Any] = httpx.get(f"{server.url}/api/checks/{check_id}").json()
        if view["state"] in states:
            return view
        time.sleep(0.02)
    raise AssertionError(f"never {states}: {view}")


def test_a_check_is_given_its_context_and_answers(serve: Serve) -> None:
    scripted = Scripted()
    server = serve(FakeEngine(checks=scripted))
    run_id = ran(server)
    answer = start(server, run_id, 1, draws=500, seed=9)
    assert answer.status_code == 202, answer.text
    view = until(server, answer.json()["id"], "done")
    context, step, following, draws, seed = scripted.asked
    assert (context, following, draws, seed) == ([0, 0, 1], [2, 3, 4, 5], 500, 9)
    assert isinstance(step, Step) and step.index == 1
    assert (view["phase"], view["done"], view["total"], view["step"]) == ("draws", 3, 3, 1)
    (found,) = view["result"]["sampler"]
    reference = fit(torch.tensor([60, 40]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert found["p_value"] == reference.p_value
    assert [(c["text"], c["expected"], c["observed"]) for c in found["categories"]] == [
        ("<0>", 50.0, 60),
        ("<1>", 50.0, 40),
    ]
    assert view["result"]["rows"] == [
        {"node": 0, "largest": 1e-4, "token_id": 7, "text": "<7>", "total_variation": 2e-4}
    ]
    assert view["result"]["greedy"]["plain_text"] == "<4>"


def test_a_run_decodes_while_a_check_goes_on(serve: Serve) -> None:
    scripted = Scripted(turns=100_000, seconds=0.002)
    server = serve(FakeEngine(at=slow(0.005), checks=scripted))
    run_id = ran(server)
    check_id = start(server, run_id, 0).json()["id"]
    until(server, check_id, "running")
    before = scripted.done
    other = ran(server, max_new_tokens=40)
    assert scripted.done > before + 5  # turn and turn about
    assert httpx.get(f"{server.url}/api/runs/{other}").json()["steps"] == 20
    view = httpx.get(f"{server.url}/api/checks/{check_id}").json()
    assert view["state"] == "running" and 0 < view["done"] < view["total"]
    assert httpx.delete(f"{server.url}/api/checks/{check_id}").json()["state"] == "cancelled"
    time.sleep(0.1)
    stopped = scripted.done
    time.sleep(0.1)
    assert scripted.done == stopped
    assert httpx.get(f"{server.url}/api/checks/{check_id}").json()["result"] is None


def test_a_check_that_fails_says_why_and_the_worker_lives(serve: Serve) -> None:
    server = serve(FakeEngine(checks=Scripted(fault=ValueError("row 3 has NaN"))))
    run_id = ran(server)
    view = until(server, start(server, run_id, 0).json()["id"], "failed")
    assert view["message"] == "the check failed: ValueError: row 3 has NaN"
    ran(server)


def test_a_server_that_stops_ends_its_checks(serve: Serve) -> None:
    scripted = Scripted(turns=100_000, seconds=0.001)
    server = serve(FakeEngine(checks=scripted))
    check_id = start(server, ran(server), 0).json()["id"]
    until(server, check_id, "running")


@pytest.mark.parametrize(
    ("settings", "step", "asked", "status", "part"),
    [
        ({"threshold_single": 0.5, "temperature": 1}, 0, {}, 422, "lossy by design"),
        ({}, 3, {}, 404, "has no step 3: it has 3"),
        ({}, 0, {"draws": 5}, 422, "draws cannot be 5"),
        ({}, 0, {"draws": 10**9}, 422, "draws cannot be 1000000000"),
        ({}, 0, {"foo": 1}, 422, "foo is not known here"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    serve: Serve, settings: dict[str, Any], step: int, asked: dict[str, Any], status: int, part: str
) -> None:
    server = serve()
    answer = start(server, ran(server, **settings), step, **asked)
    assert answer.status_code == status
    assert part in answer.json()["message"]


def test_no_run_and_no_check(serve: Serve) -> None:
    server = serve()
    assert start(server, "nothing", 0).status_code == 404
    assert httpx.get(f"{server.url}/api/checks/nothing").status_code == 404


def test_only_so_many_at_once(serve: Serve) -> None:
    server = serve(FakeEngine(checks=Scripted(turns=100_000, seconds=0.001)))
    run_id = ran(server)
    for _ in range(4):
        assert start(server, run_id, 0).status_code == 202
    answer = start(server, run_id, 0)
    assert answer.status_code == 429
    assert "4 checks go on already" in answer.json()["message"]
