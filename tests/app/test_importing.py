"""Importing in a process of its own: what goes wrong is told in one line, and nothing here is held up."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, FakeRun, slow
from fake_server import Serve

import app.importing
from ddtree.settings import Settings


def made_trace(steps: int) -> bytes:
    decoder = FakeEngine().new_decoder(Settings(max_new_tokens=10 * steps))
    run: FakeRun = decoder.start("p")
    made = [decoder.step(run) for _ in range(steps)]
    run.cancel()
    parts = {"steps": made, "summary": decoder.summary(run)}
    return decoder.head(run).model_copy(update=parts).to_json().encode()


def test_a_large_import_holds_up_neither_the_loop_nor_decoding(serve: Serve) -> None:
    """6 MB of trace, 3,000 steps, beside a run: health answers in 0.2 s throughout, the run goes on."""
    server = serve(FakeEngine(at=slow(0.005)))
    trace = made_trace(3000)
    answers: list[Any] = []
    with server.client() as client, httpx.Client() as http:
        client.ready()
        client.start(settings={"max_new_tokens": 60_000})
        upload = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{server.url}/api/traces", content=trace, timeout=60))
        )
        upload.start()
        times = []
        while upload.is_alive():
            began = time.monotonic()
            http.get(server.url + "/api/health")
            times.append(time.monotonic() - began)
            time.sleep(0.01)
        client.send("stop")
        client.until_any("finished")
    assert (answers[0].status_code, answers[0].json()["steps"]) == (201, 3000)
    assert sorted(times)[int(0.95 * len(times))] < 0.2


def test_a_store_that_takes_no_import_is_told_in_one_line(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    connection = sqlite3.connect(tmp_path / "runs.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    answer = httpx.post(f"{server.url}/api/traces", content=made_trace(2), timeout=60)
    assert answer.status_code == 500 and answer.json()["code"] == "internal"
    assert "layout 99" in answer.json()["message"] and "\n" not in answer.json()["message"]


def test_an_import_that_takes_too_long_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.importing, "LIMIT_S", 0.01)
    server = serve()
    answer = httpx.post(f"{server.url}/api/traces", content=made_trace(2), timeout=60)
    assert answer.status_code == 422 and "took more than" in answer.json()["message"]
    assert httpx.get(server.url + "/api/runs").json()["runs"] == []
