"""The service with the real default model, over real sockets: the things a made-up engine cannot show."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_server import Client
from prometheus_client.parser import text_string_to_metric_families
from serving import ServerProcess

from ddtree.replay import check_trace
from ddtree.trace_file import load_trace

pytestmark = pytest.mark.model

PROMPTS = {
    "sea": ("Write two sentences about the sea.", {"max_new_tokens": 24, "temperature": 0.8, "seed": 1}),
    "list": ("List the days of the week, twice.", {"max_new_tokens": 32, "budget": 31, "seed": 2}),
}
TIMES = {"created_at", "timing_ms", "tokens_per_second", "wall_s", "prefill_s"}


def timeless(value: Any) -> Any:
    """A trace without what differs between two equal runs: times."""
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [timeless(part) for part in value]
    return value


def decoded(server: ServerProcess, name: str) -> bytes:
    """The exported trace of one of the prompts."""
    prompt, settings = PROMPTS[name]
    with Client(server.url) as client:
        run_id = client.ready().start(prompt, settings=settings)
        client.until("finished")
    return httpx.get(f"{server.url}/api/runs/{run_id}/trace").content


def test_a_run_over_the_wire_is_a_trace_that_holds(model_server: ServerProcess) -> None:
    exported = decoded(model_server, "list")
    trace = load_trace(exported)
    assert check_trace(trace) == []
    assert trace.to_json().encode() == exported
    assert trace.summary is not None and trace.summary.committed == 32
    assert trace.drafter.kind == "hybrid"
    assert {origin for step in trace.steps if step.tree for origin in step.tree.origin} == {"dflash", "ngram"}


def test_two_prompts_at_once_equal_their_solo_traces(model_server: ServerProcess) -> None:
    solo = {name: decoded(model_server, name) for name in PROMPTS}
    together: dict[str, bytes] = {}
    barrier = threading.Barrier(len(PROMPTS))

    def run(name: str) -> None:
        barrier.wait()
        together[name] = decoded(model_server, name)

    threads = [threading.Thread(target=run, args=(name,)) for name in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in PROMPTS:
        assert timeless(json.loads(together[name])) == timeless(json.loads(solo[name]))


def test_a_setting_moved_in_mid_run_is_obeyed_by_the_next_step(model_server: ServerProcess) -> None:
    with Client(model_server.url) as client:
        client.ready().start("Tell me a story.", settings={"max_new_tokens": 200, "seed": 5}, paused=True)
        client.until("state", state="paused")
        client.send("step")
        assert client.until("step")["step"]["settings"]["temperature"] == 0
        client.send("update", settings={"temperature": 1.0, "budget": 7})
        changed = client.until("settings")
        assert (changed["from_step"], changed["settings"]["seed"]) == (1, 5)
        client.send("step")
        step = client.until("step")["step"]
        assert (step["settings"]["temperature"], step["settings"]["budget"]) == (1.0, 7)
        assert len(step["tree"]["token_ids"]) == 7 and step["sampling"]["rule"] == "target_only"
        for drafter in ("ngram", "dflash", "hybrid"):
            client.send("update", settings={"drafter": drafter})
            client.until("settings")
            client.send("step")
            step = client.until("step")["step"]
            assert step["settings"]["drafter"] == step["draft"]["source"] == drafter
        client.send("stop")
        client.until("finished")


def test_limits_of_the_model_are_named(model_server: ServerProcess) -> None:
    with Client(model_server.url) as client:
        client.ready()
        for prompt, settings, code, field in [
            ("word " * 9000, {}, "prompt_too_long", "prompt"),
            ("x", {"max_new_tokens": 100_000}, "bad_value", "max_new_tokens"),
            ("x", {"block_size": 99}, "bad_value", "block_size"),
        ]:
            client.send("start", prompt=prompt, settings=settings)
            error = client.next()
            assert (error["type"], error["code"], error["field"]) == ("error", code, field)
            assert "\n" not in error["message"]


def test_metrics_count_a_real_run(model_server: ServerProcess) -> None:
    def total(name: str) -> float:
        text = httpx.get(model_server.url + "/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = families[f"ddtree:{name}"].samples
        return sum(sample.value for sample in samples if sample.name.endswith("_total"))

    names = ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens", "generation_tokens")
    before = [total(name) for name in names]
    trace = load_trace(decoded(model_server, "sea"))
    drafts, accepted, generated = (total(name) - was for name, was in zip(names, before, strict=True))
    assert trace.summary is not None
    assert drafts == trace.summary.steps
    assert accepted == trace.summary.accepted_drafts
    assert generated == trace.summary.committed


def test_kill_9_in_mid_run_loses_no_finished_step(tmp_path: Path) -> None:
    """Every step that a viewer saw is there after a restart, equal to what was seen: interrupted."""
    with ServerProcess(data=tmp_path) as server:
        server.wait_ready()
        with Client(server.url) as client:
            run_id = client.ready().start("Tell me a long story.", settings={"max_new_tokens": 400})
            while len(client.of("step")) < 12:
                client.next()
            server.kill()
            seen = {frame["step"]["index"]: frame["step"] for frame in client.of("step")}
    with ServerProcess(data=tmp_path) as server:
        row = server.get(f"/api/runs/{run_id}")
        assert row["state"] == "interrupted" and row["summary"] is None
        assert row["steps"] >= len(seen) >= 12
        page = server.get(f"/api/runs/{run_id}/steps?limit=1000")
        stored = {step["index"]: step for step in page["steps"]}
        assert list(stored) == list(range(row["steps"]))
        assert {index: stored[index] for index in seen} == seen
        trace = load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content)
        assert trace.summary is None and check_trace(trace) == []
        with Client(server.url) as client:
            client.send("watch", run_id=run_id)
            assert client.until("started")["state"] == "interrupted"
            assert client.until("state", state="interrupted")
            assert len(client.of("step")) == row["steps"]


def test_closing_the_tab_leaves_the_run_alone_and_no_traceback(model_server: ServerProcess) -> None:
    with Client(model_server.url) as client:
        run_id = client.ready().start("Count to forty.", settings={"max_new_tokens": 40})
        client.until("step")
    limit = time.monotonic() + 60
    while (row := model_server.get(f"/api/runs/{run_id}"))["state"] != "finished":
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert row["summary"]["finish_reason"] in ("length", "stop")
    assert "Traceback" not in model_server.log()
