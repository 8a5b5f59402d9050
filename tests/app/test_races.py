"""Races and runs side by side, over real sockets: started together, linked, decoded in turn, compared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, FakeRun, slow
from fake_server import FakeServer, Serve
from test_api import decode, get

from app.races import RaceStore
from app.runs import StoreError
from ddtree.statistics import run_statistics
from ddtree.trace_file import load_trace

PLAIN = {"method": "autoregressive", "max_new_tokens": 8}
CHAIN = {"method": "chain", "budget": 2, "max_new_tokens": 8}
TREE = {"budget": 2, "max_new_tokens": 8}


def race(server: FakeServer, *lanes: dict[str, Any], prompt: str = "p") -> dict[str, Any]:
    with server.client() as client:
        client.ready()
    answer = httpx.post(f"{server.url}/api/races", json={"prompt": prompt, "lanes": list(lanes)})
    assert answer.status_code == 201, answer.text
    started: dict[str, Any] = answer.json()
    return started


def over(server: FakeServer, race_id: str) -> list[dict[str, Any]]:
    """The lanes' runs, once all have ended."""
    limit = time.monotonic() + 20
    while True:
        lanes: list[dict[str, Any]] = get(server, f"/api/races/{race_id}")["lanes"]
        if all(lane["state"] == "finished" for lane in lanes):
            return lanes
        assert time.monotonic() < limit, lanes
        time.sleep(0.02)


def test_lanes_decode_in_turn_on_one_seed_without_a_viewer(serve: Serve) -> None:
    order: list[str] = []

    def at(place: str, run: FakeRun) -> None:
        if place == "step":
            order.append(run.settings.method)
            time.sleep(0.002)

    server = serve(FakeEngine(at=at))
    started = race(server, *({**lane, "max_new_tokens": 60} for lane in (PLAIN, CHAIN, TREE)))
    lanes = over(server, started["race_id"])
    assert [lane["run_id"] for lane in lanes] == started["runs"]
    assert [lane["method"] for lane in lanes] == ["autoregressive", "chain", "ddtree"]
    together = order[order.index("ddtree") :]  # a lane may begin a few steps before the last one is there
    together = together[:30]  # nor is one over yet: each takes thirty
    assert all(len(set(together[at : at + 3])) == 3 for at in range(len(together) - 2)), order
    seeds = {get(server, f"/api/runs/{run}")["head"]["settings"]["seed"] for run in started["runs"]}
    assert len(seeds) == 1 and seeds != {7}  # drawn once, for all


def test_a_finished_race_opens_again_after_a_restart(tmp_path: Path, serve: Serve) -> None:
    server = serve()
    started = race(server, PLAIN, TREE)
    over(server, started["race_id"])
    again = race(server, {**TREE, "seed": 5}, {**PLAIN, "seed": 5})
    over(server, again["race_id"])
    server.__exit__(None, None, None)
    server = serve()
    listed = get(server, "/api/races")["races"]
    assert [one["race_id"] for one in listed] == [again["race_id"], started["race_id"]]
    assert [lane["run_id"] for lane in listed[1]["lanes"]] == started["runs"]
    httpx.delete(f"{server.url}/api/runs/{started['runs'][0]}")
    found = get(server, f"/api/races/{started['race_id']}")
    assert found["lanes"][0] is None and found["lanes"][1]["run_id"] == started["runs"][1]
    httpx.delete(f"{server.url}/api/runs/{started['runs'][1]}")
    assert [one["race_id"] for one in get(server, "/api/races")["races"]] == [again["race_id"]]


def test_a_race_is_stopped_as_a_whole(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.02)))
    started = race(server, {"max_new_tokens": 5000}, {"max_new_tokens": 5000})
    assert httpx.post(f"{server.url}/api/races/{started['race_id']}/stop").status_code == 204
    assert {lane["summary"]["finish_reason"] for lane in over(server, started["race_id"])} == {"cancelled"}


@pytest.mark.parametrize(
    ("body", "status", "words", "field"),
    [
        ({"prompt": "p", "lanes": [TREE]}, 422, "lanes", "lanes"),
        ({"prompt": "p", "lanes": [TREE] * 5}, 422, "lanes", "lanes"),
        ({"prompt": " ", "lanes": [TREE, PLAIN]}, 422, "prompt is empty", "prompt"),
        (
            {"prompt": "p", "lanes": [TREE, {"budget": 5000}]},
            422,
            "lane 2: budget cannot be 5000",
            "lanes[1].budget",
        ),
        (
            {"prompt": "p", "lanes": [{**TREE, "seed": 1}, {**TREE, "seed": 2}]},
            422,
            "different seeds",
            "lanes",
        ),
        ({"prompt": "x" * 2_000_000, "lanes": [TREE, PLAIN]}, 413, "MiB", None),
    ],
)
def test_a_race_that_cannot_be_is_refused_in_a_sentence(
    serve: Serve, body: dict[str, Any], status: int, words: str, field: str | None
) -> None:
    server = serve()
    answer = httpx.post(f"{server.url}/api/races", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["message"] and answer.json()["field"] == field
    assert get(server, "/api/runs")["runs"] == []


def test_one_refused_lane_stops_the_others(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.05)), max_decoding=1, max_waiting=0)
    with server.client() as client:
        client.ready()
    answer = httpx.post(f"{server.url}/api/races", json={"prompt": "p", "lanes": [TREE, PLAIN]})
    assert (answer.status_code, answer.json()["code"]) == (503, "queue_full")
    assert answer.json()["message"].startswith("lane 2: ") and answer.json()["field"] == "lanes[1]"
    limit = time.monotonic() + 20
    while get(server, "/api/health")["runs"]["decoding"] and time.monotonic() < limit:
        time.sleep(0.02)
    assert get(server, "/api/races")["races"] == []
    (run,) = get(server, "/api/runs")["runs"]
    assert run["summary"]["finish_reason"] == "cancelled"


def test_unknown_races_and_runs_are_named(serve: Serve) -> None:
    server = serve()
    answer = httpx.get(f"{server.url}/api/races/none")
    assert (answer.status_code, answer.json()["message"]) == (404, "there is no race 'none'")
    answer = httpx.get(f"{server.url}/api/lanes", params={"run": ["a"] * 5})
    assert answer.status_code == 422 and "the most is 4" in answer.json()["message"]
    assert httpx.get(f"{server.url}/api/lanes").status_code == 422
    assert httpx.get(f"{server.url}/api/lanes", params={"run": "gone"}).status_code == 404


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "races.sqlite3").mkdir()
    with pytest.raises(StoreError, match=r"races\.sqlite3.*--data"):
        RaceStore(tmp_path)


# ---- side by side ----


def test_lanes_show_the_librarys_figures(serve: Serve) -> None:
    server = serve()
    tree, plain = decode(server, tokens=8, budget=2), decode(server, tokens=6, method="autoregressive")
    found = get(server, "/api/lanes", run=[tree, plain])
    for lane, run_id in zip(found["lanes"], (tree, plain), strict=True):
        steps = load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content).steps
        figures = run_statistics(steps)
        assert (lane["steps"], lane["committed"], lane["tau"]) == (figures.steps, figures.committed, 2.0)
        assert lane["stages"] == pytest.approx(figures.stage_means())
        assert lane["tokens_per_second"] == pytest.approx(1000 * figures.committed / (0.7 * figures.steps))
    assert found["base"] == 1 and found["lanes"][0]["speedup"] == pytest.approx(1.0)
    assert found["same_prompt"] and found["same_seed"] and found["same_machine"]
    (difference,) = found["differences"]
    assert (difference["left"], difference["right"], difference["index"]) == (1, 0, 6)  # one is shorter
    assert difference["tokens"][0] is None and difference["tokens"][1]["text"] == "6 "
    assert difference["given"] == [None, None]


def test_outlines_come_in_parts_and_grow(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, tokens=7, budget=2)
    whole = get(server, f"/api/runs/{run_id}/outline")
    assert (whole["total"], len(whole["steps"]), whole["state"]) == (4, 4, "finished")
    first = {"texts": ["0 ", "1 "], "origins": ["ngram", "bonus"], "accepted": 1, "nodes": 2, "ms": 0.7}
    assert whole["steps"][0] == first
    assert whole["steps"][3] == {"texts": ["6 "], "origins": ["ngram"], "accepted": 1, "nodes": 2, "ms": 0.7}
    part = get(server, f"/api/runs/{run_id}/outline", **{"from": 1, "limit": 2})
    assert part["steps"] == whole["steps"][1:3] and part["first"] == 1
