"""A run's analysis over real sockets: the library's figures, ranges, what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_server import FakeServer, Serve
from test_api import decode

from app.analysis import analyse
from ddtree.probes import calibration, rank_probe
from ddtree.statistics import run_statistics
from ddtree.trace import Step, Timing
from ddtree.trace_file import load_trace
from ddtree.whatif import budget_curve


def get(server: FakeServer, run_id: str, **query: Any) -> Any:
    answer = httpx.get(f"{server.url}/api/runs/{run_id}/analysis", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def steps_of(server: FakeServer, run_id: str) -> list[Step]:
    return load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content).steps


def test_each_step_accepts_its_first_node_whatever_the_budget(serve: Serve) -> None:
    """The made-up engine: two nodes a step, the first accepted, .7 ms each, greedy."""
    server = serve()
    run_id = decode(server, tokens=8, budget=2)
    found = get(server, run_id)
    assert (found["run_id"], found["first"], found["last"], found["total"]) == (run_id, 0, 3, 4)
    points = found["whatif"]["points"]
    assert [point["budget"] for point in points] == [0, 1, 2]
    assert [point["emitted"] for point in points] == [1.0, 2.0, 2.0]
    assert [point["accepted"] for point in points] == [0.0, 1.0, 1.0]
    assert [point["bonus_unknown"] for point in points] == [0, 0, 0]
    speeds = [point["tokens_per_second"] for point in points]
    assert speeds == [pytest.approx(tokens / 0.0007) for tokens in (1, 2, 2)]
    assert found["whatif"]["times"] == [
        {"source": "ngram", "rows": 3, "steps": 4, "draft": 0.1, "verify": 0.1, "total": 0.7}
    ]
    assert (found["whatif"]["measured"], found["whatif"]["best"]) == ([2], None)
    acceptance = found["acceptance"]
    assert (acceptance["steps"], acceptance["tau"], acceptance["accepted_depth"]) == (4, 2.0, 1.0)
    everywhere = {"proposed": 4, "reached": 4, "accepted": 4, "conditional": 1.0, "unconditional": 1.0}
    never = {"proposed": 4, "reached": 4, "accepted": 0, "conditional": 0.0, "unconditional": 0.0}
    assert acceptance["cells"] == [[everywhere, never]]
    assert acceptance["depths"] == [{**everywhere, "proposed": 8}]
    assert acceptance["ranks"]["upto"] == [1, 2, 4, 8, 16, 32]
    assert acceptance["ranks"]["undrafted"] == 4
    binned = {bin["low"]: (bin["nodes"], bin["agreed"]) for bin in acceptance["calibration"] if bin["nodes"]}
    assert binned == {0.6: (4, 4), 0.2: (4, 0)}  # exp(-.5) and exp(-1.5)


def test_a_range_is_counted_alone_and_timed_by_the_whole_run(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, tokens=20, budget=2)
    steps = steps_of(server, run_id)
    found = get(server, run_id, **{"from": 2, "to": 5})
    assert (found["first"], found["last"], found["acceptance"]["steps"]) == (2, 5, 4)
    assert found == analyse(run_id, steps, 2, 5).model_dump(mode="json")
    assert found["whatif"]["times"][0]["steps"] == 10
    assert get(server, run_id, to=99)["last"] == 9


def test_a_run_of_two_budgets_has_a_best_one(serve: Serve) -> None:
    server = serve()
    steps = steps_of(server, decode(server, tokens=12, budget=2))
    slow = Timing(draft=1, build=0, encode=0, verify=4, sample=0, commit=0, other=0, total=5)
    small = [
        step.model_copy(update={"settings": step.settings.updated(budget=1), "tree": cut_to_one(step)})
        for step in steps[:3]
    ]
    large = [step.model_copy(update={"timing_ms": slow}) for step in steps[3:]]
    whatif = analyse("r", [*small, *large], 3, 5).whatif
    assert (whatif.measured, whatif.best, whatif.steps) == ([1, 2], 1, 3)
    assert whatif.points[1].tokens_per_second == pytest.approx(2 / 0.0007)
    assert whatif.points[2].tokens_per_second == pytest.approx(2 / 0.005)


def cut_to_one(step: Step) -> Any:
    assert step.tree is not None
    names = ("token_ids", "texts", "depths", "ranks", "row", "log_weights", "draft_log_probs", "origin")
    update = {name: getattr(step.tree, name)[:1] for name in names}
    return step.tree.model_copy(update={**update, "parents": [-1, 0]})


def test_the_figures_are_the_librarys(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, tokens=14, budget=2, threshold_acc=0.5)
    steps, found = steps_of(server, run_id), get(server, run_id)
    curve, counted = budget_curve(steps, steps), run_statistics(steps)
    assert [p["emitted"] * curve.steps for p in found["whatif"]["points"]] == [
        p.emitted for p in curve.points
    ]
    assert found["acceptance"]["tau"] == counted.tau
    assert [d["conditional"] for d in found["acceptance"]["depths"]] == [
        depth.conditional for depth in counted.by_depth()
    ]
    assert found["acceptance"]["ranks"]["beyond"] == rank_probe(steps).beyond
    assert [b["interval"] for b in found["acceptance"]["calibration"]] == [
        None if b.interval is None else list(b.interval) for b in calibration(steps)
    ]


def test_a_run_without_steps_has_an_empty_analysis() -> None:
    found = analyse("r", [], 0, 0)
    assert (found.whatif.points, found.whatif.best, found.acceptance.tau) == ([], None, None)
    assert found.acceptance.depths == [] and found.acceptance.steps == 0


@pytest.mark.parametrize(
    ("query", "status", "field", "says"),
    [
        ({"from": 3, "to": 2}, 422, "from", "from cannot be 3: it must be at most 2"),
        ({"from": 9}, 422, "from", "from cannot be 9: it must be at most 2"),
        ({"from": -1}, 422, "from", "'-1'"),
        ({"to": "x"}, 422, "to", "'x'"),
    ],
)
def test_a_range_that_is_none_is_refused(
    serve: Serve, query: dict[str, Any], status: int, field: str, says: str
) -> None:
    server = serve()
    answer = httpx.get(f"{server.url}/api/runs/{decode(server)}/analysis", params=query)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
    assert says in answer.json()["message"]


def test_an_unknown_run_is_not_found(serve: Serve) -> None:
    answer = httpx.get(f"{serve().url}/api/runs/nope/analysis")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
