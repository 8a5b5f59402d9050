"""Forks over the wire: what the new run begins with, what links the two, and where their texts part."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, FakeRun, made_step
from fake_server import FakeServer, Serve
from test_api import decode, get

from ddtree.settings import Settings
from ddtree.trace import Step
from ddtree.trace_file import load_trace


def fork(server: FakeServer, run_id: str, step: int, tokens: int = 6, **settings: Any) -> str:
    with server.client() as client:
        client.ready()
        client.send(
            "start",
            prompt="",
            settings={"max_new_tokens": tokens, **settings},
            fork={"run_id": run_id, "step": step},
        )
        started = client.until("started")
        assert started["forked_from"] == {"run_id": run_id, "step": step}
        client.until("finished")
    return str(started["run_id"])


def trace_of(server: FakeServer, run_id: str) -> Any:
    return load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content)


def test_a_fork_begins_with_what_its_parent_had_before_the_step(serve: Serve) -> None:
    server = serve()
    parent = decode(server, "rivers", tokens=8)
    child = fork(server, parent, 2)
    trace = trace_of(server, child)
    assert trace.forked_from.model_dump() == {"run_id": parent, "step": 2}
    assert trace.prompt.text == "rivers"
    before = [i for step in trace_of(server, parent).steps[:2] for i in step.committed.token_ids]
    assert trace.prompt.token_ids == [0, *before] and len(before) == 4
    grandchild = trace_of(server, fork(server, child, 1))
    assert grandchild.prompt.token_ids == [*trace.prompt.token_ids, *trace.steps[0].committed.token_ids]
    assert [trace_of(server, fork(server, parent, 0)).prompt.token_ids] == [[0]]


def test_both_ends_name_each_other_and_an_export_carries_it(serve: Serve) -> None:
    server = serve()
    parent = decode(server, "rivers", tokens=8)
    first, second = fork(server, parent, 1), fork(server, parent, 3)
    assert get(server, f"/api/runs/{first}")["forked_from"] == {"run_id": parent, "step": 1}
    assert [run["run_id"] for run in get(server, f"/api/runs/{parent}")["forks"]] == [first, second]
    lineage = get(server, f"/api/runs/{parent}/lineage")
    assert lineage["parent"] is None and [run["run_id"] for run in lineage["forks"]] == [first, second]
    exported = httpx.get(f"{server.url}/api/runs/{first}/trace").content
    copy = httpx.post(f"{server.url}/api/traces", content=exported).json()["run_id"]
    assert httpx.get(f"{server.url}/api/runs/{copy}/trace").content == exported
    assert get(server, f"/api/runs/{copy}/lineage")["parent"]["run_id"] == parent
    assert httpx.delete(f"{server.url}/api/runs/{parent}").status_code == 204
    lineage = get(server, f"/api/runs/{first}/lineage")
    assert (lineage["parent"], lineage["index"], lineage["compared"]) == (None, None, 0)


class Parting(FakeEngine):
    """A fork's steps commit what its parent's did, but for the second token of step 1."""

    def new_decoder(self, settings: Settings) -> Any:
        decoder = super().new_decoder(settings)
        plain = decoder.step

        def step(run: FakeRun) -> Step:
            if run.fork is None:
                return plain(run)
            before = run.committed
            run.committed += len(run.fork.token_ids) - 1
            long = settings.model_copy(update={"max_new_tokens": 1000})
            made = made_step(run, decoder.resolve(long)).model_copy(update={"index": run.steps})
            run.committed = before + 2
            run.steps += 1
            assert made.committed is not None
            if run.steps == 2:
                changed = made.committed.model_copy(update={"token_ids": [made.committed.token_ids[0], 777]})
                made = made.model_copy(update={"committed": changed})
            if run.committed >= settings.max_new_tokens:
                run.finish_reason = "length"
            return made

        decoder.step = step  # type: ignore[method-assign]
        return decoder


def test_where_the_texts_part_is_named_with_step_and_place(serve: Serve) -> None:
    server = serve(Parting())
    parent = decode(server, "rivers", tokens=12)
    child = fork(server, parent, 2, tokens=6)
    found = get(server, f"/api/runs/{child}/lineage")
    theirs = trace_of(server, parent).steps[3].committed.token_ids[1]
    assert (found["index"], found["compared"], found["step"]) == (3, 6, 2)
    assert found["mine"] == {"token_id": 777, "step": 1, "place": 1}
    assert found["theirs"] == {"token_id": theirs, "step": 3, "place": 1}
    short = get(server, f"/api/runs/{fork(server, parent, 5, tokens=2)}/lineage")
    assert (short["index"], short["compared"], short["mine"]) == (None, 2, None)


@pytest.mark.parametrize(
    ("point", "code", "field", "reason"),
    [
        ({"run_id": "none", "step": 0}, "not_found", "fork.run_id", "there is no run none"),
        ({"step": 3}, "bad_value", "fork.step", "has 3 steps, counted from 0"),
        ({"step": -1}, "bad_value", "fork.step", "fork.step cannot be -1"),
        ({"step": "x"}, "bad_value", "fork.step", "fork.step cannot be 'x'"),
        ({}, "bad_value", "fork.step", "missing"),
    ],
)
def test_a_fork_of_nothing_is_refused(
    serve: Serve, point: dict[str, Any], code: str, field: str, reason: str
) -> None:
    server = serve()
    run_id = decode(server)
    with server.client() as client:
        client.ready()
        client.send("start", prompt="", fork={"run_id": run_id, **point})
        error = client.until_any("error")
    assert (error["code"], error["field"]) == (code, field) and reason in error["message"]


def test_a_run_of_another_model_is_not_forked(serve: Serve) -> None:
    server = serve()
    trace = json.loads(httpx.get(f"{server.url}/api/runs/{decode(server)}/trace").content)
    trace["target"]["name"] = "another"
    run_id = httpx.post(f"{server.url}/api/traces", content=json.dumps(trace)).json()["run_id"]
    with server.client() as client:
        client.ready()
        client.send("start", prompt="", fork={"run_id": run_id, "step": 0})
        error = client.until_any("error")
    assert "it decoded with another; fake is loaded" in error["message"]
