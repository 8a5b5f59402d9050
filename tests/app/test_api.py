"""The HTTP API over real sockets: runs, steps, traces in and out, broken uploads, the schema, metrics."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake_engine import Brake, FakeEngine
from fake_server import FakeServer, Serve
from prometheus_client.parser import text_string_to_metric_families

from ddtree.trace import Trace
from ddtree.trace_file import load_trace


def decode(server: FakeServer, prompt: str = "p", tokens: int = 6, **settings: Any) -> str:
    """A finished run's id."""
    with server.client() as client:
        client.ready()
        run_id = client.start(prompt, settings={"max_new_tokens": tokens, **settings})
        client.until("finished")
    return run_id


def get(server: FakeServer, path: str, **params: Any) -> Any:
    answer = httpx.get(server.url + path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---- runs ----


def test_a_run_is_listed_shown_and_deleted(serve: Serve) -> None:
    server = serve()
    first, second = decode(server, "one"), decode(server, "x" * 500, threshold_acc=0.5)
    listing = get(server, "/api/runs")
    assert [row["run_id"] for row in listing["runs"]] == [second, first]
    assert listing["next"] is None
    newest = listing["runs"][0]
    assert newest["prompt"] == "x" * 200 and newest["lossy"] is True and newest["imported"] is False
    assert (newest["state"], newest["steps"], newest["committed"]) == ("finished", 3, 6)
    assert newest["summary"]["finish_reason"] == "length"
    page = get(server, "/api/runs", limit=1)
    assert [row["run_id"] for row in page["runs"]] == [second]
    assert [row["run_id"] for row in get(server, "/api/runs", after=page["next"])["runs"]] == [first]
    shown = get(server, f"/api/runs/{first}")
    assert shown["head"]["prompt"]["text"] == "one" and "steps" not in shown["head"]
    assert httpx.delete(f"{server.url}/api/runs/{first}").status_code == 204
    for method in ("GET", "DELETE"):
        gone = httpx.request(method, f"{server.url}/api/runs/{first}")
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    assert len(get(server, "/api/runs")["runs"]) == 1


def test_steps_come_in_pages(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, tokens=20)
    page = get(server, f"/api/runs/{run_id}/steps", **{"from": 3, "limit": 4})
    assert [step["index"] for step in page["steps"]] == [3, 4, 5, 6]
    assert (page["run_id"], page["from"], page["total"], page["next"]) == (run_id, 3, 10, 7)
    page = get(server, f"/api/runs/{run_id}/steps", **{"from": 7})
    assert [step["index"] for step in page["steps"]] == [7, 8, 9] and page["next"] is None
    assert get(server, f"/api/runs/{run_id}/steps", **{"from": 99})["steps"] == []


@pytest.mark.parametrize(
    ("name", "value"), [("from", "-1"), ("from", "x"), ("limit", "0"), ("limit", "1001")]
)
def test_a_bad_query_is_named(serve: Serve, name: str, value: str) -> None:
    answer = httpx.get(f"{serve().url}/api/runs/x/steps", params={name: value})
    assert answer.status_code == 422
    assert answer.json()["field"] == name and repr(value) in answer.json()["message"]


def test_a_live_run_can_be_read_and_is_not_deleted(serve: Serve) -> None:
    brake = Brake(step=2)
    server = serve(FakeEngine(at=brake))
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 10})
        assert brake.reached.wait(20)
        client.until("step")
        client.until("step")
        assert get(server, f"/api/runs/{run_id}")["state"] == "running"
        trace = load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content)
        assert len(trace.steps) == 2 and trace.summary is None
        refused = httpx.delete(f"{server.url}/api/runs/{run_id}")
        assert (refused.status_code, refused.json()["code"]) == (409, "run_live")
        brake.release()
        client.until("finished")
    assert httpx.delete(f"{server.url}/api/runs/{run_id}").status_code == 204


# ---- traces ----


@pytest.mark.parametrize("fails_at", [None, 2])
def test_export_import_export_is_byte_identical(serve: Serve, fails_at: int | None) -> None:
    server = serve(FakeEngine(fails_at=fails_at))
    run_id = decode(server, 'a "quoted" \u2028 \U0001f600 <b>', seed=str(2**60))
    answer = httpx.get(f"{server.url}/api/runs/{run_id}/trace")
    assert answer.headers["content-disposition"] == f'attachment; filename="ddtree-{run_id}.json"'
    exported = answer.content
    trace = load_trace(exported)
    assert trace.to_json().encode() == exported  # what `ddtree run --trace` writes
    assert trace.summary is not None
    assert trace.summary.finish_reason == ("length" if fails_at is None else "error")
    imported = httpx.post(f"{server.url}/api/traces", content=exported)
    assert imported.status_code == 201 and imported.json()["steps"] == 3
    copy = imported.json()["run_id"]
    assert copy != run_id
    assert httpx.get(f"{server.url}/api/runs/{copy}/trace").content == exported
    row = get(server, f"/api/runs/{copy}")
    assert row["imported"] is True and row["state"] == "finished"


def test_a_trace_that_was_cut_off_is_imported_as_interrupted(serve: Serve) -> None:
    server = serve()
    trace = load_trace(httpx.get(f"{server.url}/api/runs/{decode(server)}/trace").content)
    cut = trace.model_copy(update={"summary": None}).to_json().encode()
    run_id = httpx.post(f"{server.url}/api/traces", content=cut).json()["run_id"]
    assert get(server, f"/api/runs/{run_id}")["state"] == "interrupted"
    assert httpx.get(f"{server.url}/api/runs/{run_id}/trace").content == cut


def edited(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def edit(exported: bytes) -> bytes:
        trace = json.loads(exported)
        change(trace)
        return json.dumps(trace).encode()

    return edit


def put(*path: Any) -> Callable[[bytes], bytes]:
    """The trace with the last of `path` put where the rest of it leads."""

    def change(trace: Any) -> None:
        for part in path[:-2]:
            trace = trace[part]
        trace[path[-2]] = path[-1]

    return edited(change)


BROKEN = [
    (lambda _: b"", 422, "empty"),
    (lambda _: b"null", 422, "not a trace"),
    (lambda _: b"5", 422, "not a trace"),
    (lambda _: b"[]", 422, "not a trace"),
    (lambda _: b"{}", 422, "not a trace"),
    (lambda _: b'{"__proto__":{}}', 422, "not a trace"),
    (lambda given: given.decode().encode("utf-16"), 422, "UTF-16"),
    (lambda given: given.decode().encode("utf-16-le"), 422, "UTF-16"),
    (gzip.compress, 422, "gzip"),
    (lambda given: given[:-20], 422, "line 1 column"),
    (lambda given: given.replace(b'"final_uniform":0.5', b'"final_uniform":NaN', 1), 422, "line 1 column"),
    (
        lambda given: given.replace(b'"final_uniform":0.5', b'"final_uniform":Infinity', 1),
        422,
        "line 1 column",
    ),
    (lambda given: b"\xff" + given, 422, "not JSON"),
    (put("steps", 1, "tree", "parents", [-1, 2, 1]), 422, "steps[1].tree.parents[1]"),
    (put("steps", 1, "accept", "accept_index", [0, 1, 2]), 422, "steps[1].accept.accept_index[2]"),
    (put("steps", 1, "tree", "token_ids", [-1, 0]), 422, "steps[1].tree.token_ids[0]"),
    (put("steps", 1, "tree", "token_ids", [10**12, 0]), 422, "steps[1].tree.token_ids[0]"),
    (put("steps", 1, "colour", 1), 422, "steps[1].colour"),
    (put("version", 2), 422, "version"),
    (lambda given: b" " * (2 * 1024 * 1024), 413, "2.0 MiB"),
]


@pytest.mark.parametrize(("broken", "status", "reason"), BROKEN)
def test_a_broken_trace_is_refused_in_one_line_and_nothing_is_written(
    serve: Serve, broken: Callable[[bytes], bytes], status: int, reason: str
) -> None:
    server = serve(max_upload_bytes=1024 * 1024)
    exported = httpx.get(f"{server.url}/api/runs/{decode(server)}/trace").content
    answer = httpx.post(f"{server.url}/api/traces", content=broken(exported))
    assert answer.status_code == status, answer.text
    message = answer.json()["message"]
    assert reason in message and "\n" not in message and len(message) < 300
    assert len(get(server, "/api/runs")["runs"]) == 1


def test_an_upload_of_200_mb_is_refused_without_being_kept(serve: Serve) -> None:
    server = serve(max_upload_bytes=1024 * 1024)

    def endless() -> Any:
        for _ in range(200):
            yield b" " * 1024 * 1024

    try:
        answer = httpx.post(f"{server.url}/api/traces", content=endless(), timeout=30)
        assert answer.status_code == 413
        assert "the limit is 1.0 MiB" in answer.json()["message"]
    except httpx.WriteError:
        pass  # the server closed the connection instead of reading on: as good
    assert get(server, "/api/runs")["runs"] == []


def test_imports_while_the_model_blocks(serve: Serve) -> None:
    brake = Brake(step=0, prompt="slow")
    server = serve(FakeEngine(at=brake))
    exported = httpx.get(f"{server.url}/api/runs/{decode(server)}/trace").content
    with server.client() as client:
        client.ready()
        client.start("slow")
        assert brake.reached.wait(20)
        assert httpx.post(f"{server.url}/api/traces", content=exported).status_code == 201
        brake.release()


# ---- the rest ----


def test_health_and_models_while_loading_and_after(serve: Serve) -> None:
    loaded = threading.Event()

    class Loading(FakeEngine):
        def load(self, settings: Any, progress: Any) -> FakeEngine:
            progress("reading the weights", 0.25)
            assert loaded.wait(20)
            return self

    server = serve(Loading())
    health = get(server, "/api/health")
    assert health["status"] == "ok"
    assert health["model"] == {"state": "loading", "message": "reading the weights", "progress": 0.25}
    assert get(server, "/api/models")["target"] is None
    loaded.set()
    with server.client() as client:
        client.ready()
    models = get(server, "/api/models")
    assert models["target"]["name"] == "fake" and models["default_drafter"] == "ngram"
    assert models["drafters"][0]["not_used"] == "there is none for tests"
    assert models["engine"]["device"] == "cpu" and models["has_chat_template"] is False
    known = {model["name"]: model for model in models["known"]}
    assert known["SmolLM2-135M-Instruct"]["role"] == "target"


def test_the_schema_is_the_traces_own(serve: Serve) -> None:
    assert get(serve(), "/api/schema/trace") == Trace.model_json_schema()


def test_unknown_paths_and_methods_get_the_same_shape_of_error(serve: Serve) -> None:
    server = serve()
    answer = httpx.get(server.url + "/api/nothing")
    assert answer.status_code == 404 and answer.json()["code"] == "not_found"
    answer = httpx.get(server.url + "/api/traces")
    assert answer.status_code == 405 and set(answer.json()) == {"code", "message", "field"}


def test_metrics_have_vllms_names_and_count_what_was_committed(serve: Serve) -> None:
    server = serve()
    decode(server, tokens=5)  # three steps of 2, 2 and 1 tokens: one draft of each was committed
    families = {
        family.name: family
        for family in text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
    }

    def value(name: str, **labels: str) -> float:
        (sample,) = [
            sample
            for sample in families[f"ddtree:{name}"].samples
            if sample.name.endswith(("_total", name)) and labels.items() <= sample.labels.items()
        ]
        return float(sample.value)

    assert value("spec_decode_num_drafts", model_name="fake") == 3
    assert value("spec_decode_num_draft_tokens") == 6
    assert value("spec_decode_num_accepted_tokens") == 3
    assert value("spec_decode_num_accepted_tokens_per_pos", position="0") == 3
    assert value("generation_tokens") == 5
    assert value("request_success", finished_reason="length") == 1
    assert value("num_requests_running") == 0
