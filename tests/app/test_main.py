"""The process: it starts light, says where it listens, refuses in one sentence, and stops when told."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine, slow
from fake_server import Serve
from serving import ROOT, ServerProcess

from app.main import ServeError, Server
from app.settings import ServerSettings


def test_the_application_imports_no_torch() -> None:
    code = "import app.main, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_page_answers_within_three_seconds_of_the_start(tmp_path: Path) -> None:
    with ServerProcess(data=tmp_path) as server:
        assert server.started_after_s < 3
        answer = httpx.get(server.url)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
        assert server.health()["uptime_s"] < 3
        listening = [line for line in server.log().splitlines() if "listens on" in line]
        assert len(listening) == 1 and server.url in listening[0]
        server.stop()
        assert server.process.returncode == 0
        assert "Traceback" not in server.log()


def test_a_port_in_use_is_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError) as refused:
            Server(ServerSettings(port=port, data=tmp_path))
    assert str(port) in str(refused.value) and "--port" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_host_that_is_not_known_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match=r"host no\.such\.host\.invalid is not known"):
        Server(ServerSettings(host="no.such.host.invalid", port=0, data=tmp_path))


def test_a_store_in_use_is_one_sentence_and_frees_the_port(serve: Serve, tmp_path: Path) -> None:
    serve(data=tmp_path)
    with pytest.raises(ServeError, match="another server is using it"):
        Server(ServerSettings(port=0, data=tmp_path))


def test_ipv6_loopback_is_served(serve: Serve) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = serve(host="::1")
    except ServeError as error:
        pytest.skip(str(error))
    assert server.url.startswith("http://[::1]:")
    assert httpx.get(server.url + "/api/health").status_code == 200


def test_stopping_cancels_what_is_live_and_keeps_it(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.005)))
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 50_000})
        client.until("step")
        server.server.should_exit = True
        assert client.until_any("step")
    server.thread.join(20)
    again = serve()
    row = httpx.get(f"{again.url}/api/runs/{run_id}").json()
    assert (row["state"], row["summary"]["finish_reason"]) == ("finished", "cancelled")
    assert row["steps"] == row["summary"]["steps"] > 0


def test_a_server_that_is_still_loading_stops_at_once_and_quietly(tmp_path: Path) -> None:
    with ServerProcess(data=tmp_path) as server:
        assert server.health()["model"]["state"] == "loading"
        began = time.monotonic()
        server.stop()
        assert server.process.returncode == 0
        assert time.monotonic() - began < 12
        assert "Traceback" not in server.log()
