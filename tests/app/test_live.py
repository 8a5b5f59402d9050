"""The websocket over real sockets: commands, several viewers, reconnecting, lagging, closing whenever."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from fake_engine import Brake, FakeEngine, slow
from fake_server import Serve

from app.hub import LOG_FRAMES
from app.settings import MAX_PROMPT_CHARS


def indices(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["step"]["index"] for frame in frames if frame["type"] == "step"]


# ---- a run from beginning to end ----


def test_a_run_is_told_frame_by_frame(serve: Serve) -> None:
    with serve().client() as client:
        hello = client.until("hello", model="ready")
        assert hello["target"]["name"] == "fake" and hello["default_drafter"] == "ngram"
        run_id = client.start("tell me", settings={"max_new_tokens": 6})
        finished = client.until("finished")
    started = client.of("started")[0]
    assert started["prompt"] == {"text": "tell me", "token_ids": [0], "texts": ["tell me"]}
    assert started["settings"]["seed"] == 7 and started["settings"]["drafter"] == "ngram"
    assert indices(client.frames) == [0, 1, 2]
    assert finished["summary"]["committed"] == 6 and finished["summary"]["finish_reason"] == "length"
    of_run = [frame for frame in client.frames if frame.get("run_id") == run_id]
    assert [frame["seq"] for frame in of_run] == list(range(len(of_run)))
    assert [frame["state"] for frame in client.of("state")] == ["prefill", "prefill", "prefill", "running"]


def test_the_page_is_told_when_the_model_is_ready_and_when_it_fails(serve: Serve) -> None:
    class Failing(FakeEngine):
        def load(self, settings: object, progress: object) -> FakeEngine:
            raise ValueError("there is no model x: name another")

    with serve(Failing()).client() as client:
        hello = client.until("hello", model="failed")
        assert hello["message"] == "there is no model x: name another"
        client.send("start", prompt="p")
        error = client.next()
        assert (error["type"], error["code"]) == ("error", "not_ready")
        assert "there is no model x" in error["message"]


def test_a_run_cannot_start_while_the_model_loads(serve: Serve) -> None:
    loaded = threading.Event()

    class Loading(FakeEngine):
        def load(self, settings: Any, progress: Any) -> FakeEngine:
            progress("reading the weights", 0.25)
            assert loaded.wait(20)
            return self

    with serve(Loading()).client() as client:
        hello = client.until("hello", message="reading the weights")
        assert hello["model"] == "loading" and hello["progress"] == 0.25
        client.send("start", prompt="p")
        assert client.next()["code"] == "not_ready"
        loaded.set()
        client.until("hello", model="ready")
        client.start(settings={"max_new_tokens": 2})
        client.until("finished")


# ---- commands ----


def test_pause_step_update_resume_stop(serve: Serve) -> None:
    with serve(FakeEngine(at=slow(0.01))).client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 50_000}, paused=True)
        client.until("state", state="paused")
        assert indices(client.frames) == []
        client.send("step")
        assert client.until("step")["step"]["index"] == 0
        client.until("state", state="paused")
        client.send("update", settings={"temperature": 0.5, "budget": 31}, pace=20)
        changed = client.until("settings")
        assert changed["settings"]["temperature"] == 0.5 and changed["settings"]["seed"] == 7
        assert (changed["pace"], changed["from_step"]) == (20, 1)
        client.send("resume")
        assert client.until("step")["step"]["settings"]["budget"] == 31
        client.send("pause")
        client.until("state", state="paused")
        assert client.silent(0.2)
        client.send("stop")
        assert client.until("finished")["summary"]["finish_reason"] == "cancelled"
        client.send("step")
        assert client.next()["code"] == "no_run"


def test_a_prompt_can_be_paused_resumed_and_stopped_in_mid_prefill(serve: Serve) -> None:
    def at(place: str, run: Any) -> None:
        time.sleep(0.01)

    with serve(FakeEngine(at=at, prefill_chunks=40)).client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 4})
        client.until("state", progress=0.25)
        client.send("pause")
        client.until("state", state="paused")
        assert client.silent(0.1)
        client.send("resume")
        client.until("state", state="prefill")
        client.until("state", state="running")
        done = [frame["progress"] for frame in client.of("state") if frame["progress"] is not None]
        assert done == [(chunk + 1) / 40 for chunk in range(40)]  # nothing was computed twice
        client.until("finished")
        client.start(settings={"max_new_tokens": 4})
        client.until("state", progress=0.25)
        client.send("stop")
        summary = client.until("finished")["summary"]
        assert (summary["finish_reason"], summary["steps"]) == ("cancelled", 0)


def test_a_waiting_run_can_be_paused_and_stopped(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.01)), max_decoding=1)
    with server.client() as busy, server.client() as client:
        busy.ready()
        client.ready()
        busy.start(settings={"max_new_tokens": 60_000})
        client.start(settings={"max_new_tokens": 4})
        client.until("state", state="waiting", place=1)
        client.send("pause")
        client.until("state", state="paused")
        client.send("step")
        client.until("state", state="waiting", place=1)
        client.send("stop")
        assert client.until("finished")["summary"]["finish_reason"] == "cancelled"


def test_pace_spaces_the_steps_and_can_be_lifted(serve: Serve) -> None:
    with serve().client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 4000}, pace=20)
        client.until("step")
        began = time.monotonic()
        for _ in range(6):
            client.until("step")
        assert 0.25 < time.monotonic() - began < 1.5  # six intervals of 50 ms
        client.send("update", pace=None)
        assert client.until("settings")["pace"] is None
        began = time.monotonic()
        client.until("finished")
        assert time.monotonic() - began < 10  # 2,000 steps at 20 a second would take 100 s


def test_an_update_without_pace_leaves_the_pace(serve: Serve) -> None:
    with serve().client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 4000}, pace=5, paused=True)
        client.until("state", state="paused")
        client.send("update", settings={"budget": 7})
        assert client.until("settings")["pace"] == 5


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        ("no json", "bad_message", None),
        ("[]", "bad_message", None),
        ("null", "bad_message", None),
        ("{}", "bad_message", None),
        (b"\x00", "bad_message", None),
        ('{"type": "dance"}', "unknown_type", "type"),
        ('{"type": "start"}', "bad_value", "prompt"),
        ('{"type": "start", "prompt": 5}', "bad_value", "prompt"),
        ('{"type": "start", "prompt": "x", "colour": 1}', "bad_value", "colour"),
        ('{"type": "start", "prompt": "x", "pace": 0}', "bad_value", "pace"),
        ('{"type": "start", "prompt": ""}', "bad_value", "prompt"),
        ('{"type": "start", "prompt": "x", "settings": {"temperature": 9}}', "bad_value", "temperature"),
        ('{"type": "start", "prompt": "x", "settings": {"temperature": NaN}}', "bad_value", "temperature"),
        ('{"type": "start", "prompt": "x", "settings": {"budget": 1025}}', "bad_value", "budget"),
        ('{"type": "start", "prompt": "x", "settings": {"budget": "7"}}', "bad_value", "budget"),
        ('{"type": "start", "prompt": "x", "settings": {"temprature": 1}}', "bad_value", "temprature"),
        ('{"type": "watch", "run_id": "x", "after": -2}', "bad_value", "after"),
        ('{"type": "watch", "run_id": "nothing"}', "not_found", None),
        ('{"type": "pause"}', "no_run", None),
        (json.dumps({"type": "start", "prompt": "x" * (MAX_PROMPT_CHARS + 1)}), "prompt_too_long", "prompt"),
    ],
)
def test_bad_messages_are_answered_and_the_connection_lives_on(
    serve: Serve, message: str | bytes, code: str, field: str | None
) -> None:
    with serve().client() as client:
        client.ready()
        client.send_raw(message)
        error = client.next()
        assert (error["type"], error["code"], error["field"]) == ("error", code, field), error
        assert "\n" not in error["message"] and len(error["message"]) < 300
        client.start(settings={"max_new_tokens": 2})
        client.until("finished")


def test_an_error_names_the_value(serve: Serve) -> None:
    with serve().client() as client:
        client.ready()
        client.send("start", prompt="x", settings={"temperature": 9})
        assert client.next()["message"] == (
            "temperature cannot be 9: input should be less than or equal to 5"
        )
        client.send("start", prompt="x", settings={"temprature": 1})
        assert client.next()["message"] == ("temprature is not known here: leave it out or correct its name")


def test_what_holds_for_a_run_is_not_live_and_nothing_changes(serve: Serve) -> None:
    with serve().client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 10}, paused=True)
        client.until("state", state="paused")
        client.send("update", settings={"seed": 3})
        error = client.next()
        assert (error["code"], error["field"]) == ("not_live", "seed")
        client.send("update", settings={"temperature": -1})
        error = client.next()
        assert (error["code"], error["field"]) == ("bad_value", "temperature")
        client.send("resume")
        client.until("finished")
        assert {frame["step"]["settings"]["temperature"] for frame in client.of("step")} == {0.0}


def test_a_refused_start_leaves_the_run_before_it_commanded(serve: Serve) -> None:
    with serve().client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 10}, paused=True)
        client.until("state", state="paused")
        client.send("start", prompt="")
        assert client.next()["code"] == "bad_value"
        client.send("step")
        assert client.until("step")["step"]["index"] == 0


# ---- several runs, several viewers ----


def test_four_runs_decode_in_turn_and_others_see_their_place(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.002)))
    clients = [server.client().ready() for _ in range(6)]
    runs = [client.start(f"p{i}", settings={"max_new_tokens": 60_000}) for i, client in enumerate(clients)]
    assert len(set(runs)) == 6
    for client in clients[:4]:
        client.until("step")
    assert clients[4].until("state", state="waiting")["place"] == 1
    assert clients[5].until("state", state="waiting")["place"] == 2
    health = httpx.get(server.url + "/api/health").json()
    assert health["runs"] == {"decoding": 4, "waiting": 2, "paused": 0}
    counts = [row["steps"] for row in httpx.get(server.url + "/api/runs").json()["runs"]]
    assert counts[:2] == [0, 0] and max(counts[2:]) - min(counts[2:]) <= 40  # in turn
    clients[0].send("pause")  # a paused run holds no slot
    clients[4].until("state", state="running")
    clients[5].until("state", state="waiting", place=1)
    clients[1].send("stop")
    clients[5].until("state", state="running")
    for client in clients:
        client.close()


def test_more_runs_than_may_wait_are_refused(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.01)), max_decoding=1, max_waiting=1)
    with server.client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 60_000})
        client.start(settings={"max_new_tokens": 60_000})
        client.send("start", prompt="p")
        while (frame := client.next())["type"] != "error":
            pass
        assert frame["code"] == "queue_full"


def test_viewers_of_one_run_see_the_same_and_it_goes_on_without_them(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.002)))
    with server.client() as first, server.client() as second:
        first.ready()
        second.ready()
        run_id = first.start(settings={"max_new_tokens": 400})
        second.send("watch", run_id=run_id)
        assert second.until("started")["prompt"]["text"] == "p"
        second.until("step")
        first.close()
        second.until("finished")
        assert indices(second.frames) == list(range(200))
        seqs = [frame["seq"] for frame in second.frames if "seq" in frame]
        assert seqs == sorted(set(seqs))


def test_a_viewer_that_comes_back_continues_where_it_was(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.001)))
    with server.client() as first:
        first.ready()
        run_id = first.start(settings={"max_new_tokens": 2000})
        while indices(first.frames)[-1:] != [30]:
            first.next()
    time.sleep(0.3)  # more than the live log holds goes by
    with server.client() as second:
        second.ready()
        second.send("watch", run_id=run_id, after=30)
        second.until("finished")
    assert second.of("started")[0]["steps"] > 30
    assert indices(second.frames) == list(range(31, 1000))


def test_a_finished_run_can_be_watched(serve: Serve) -> None:
    server = serve()
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 40})
        client.until("finished")
    with server.client() as client:
        client.ready()
        client.send("watch", run_id=run_id, after=4)
        started = client.until("started")
        assert (started["state"], started["steps"]) == ("finished", 20)
        finished = client.until("finished")
        assert indices(client.frames) == list(range(5, 20))
        assert finished["seq"] > client.of("step")[-1]["seq"]
        client.send("watch", run_id=run_id, after=10_000)
        client.until("finished")
        assert len(client.of("step")) == 15


def test_watching_a_waiting_and_a_paused_run_tells_its_state(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.01)), max_decoding=1)
    with server.client() as owner, server.client() as other:
        owner.ready()
        other.ready()
        busy = owner.start(settings={"max_new_tokens": 60_000})
        waiting = owner.start(settings={"max_new_tokens": 60_000})
        other.send("watch", run_id=waiting)
        assert other.until("started")["state"] == "waiting"
        assert other.until("state")["place"] == 1
        other.send("watch", run_id=busy)
        other.until("step")
        other.send("pause")
        other.until("state", state="paused")
        owner.until("state", state="running", run_id=waiting)


# ---- viewers that are slow, or gone ----


def test_a_viewer_that_never_reads_slows_nobody_and_costs_nothing(serve: Serve) -> None:
    """2,000 steps beside a socket that is opened, asks to watch, and never reads a byte."""
    server = serve()
    with server.client() as reader:
        reader.ready()
        run_id = reader.start(settings={"max_new_tokens": 4000}, paused=True)
        reader.until("state", state="paused")
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((host, int(port)))
            deaf.sendall(handshake(host, port))
            assert deaf.recv(12) == b"HTTP/1.1 101"
            deaf.sendall(text_frame({"type": "watch", "run_id": run_id}))
            channel = server_channel(server, run_id)
            while len(channel.viewers) < 2:
                time.sleep(0.01)
            reader.send("resume")
            reader.until("finished")
            assert len(channel.log) <= LOG_FRAMES
    missed = [range(frame["from"], frame["to"] + 1) for frame in reader.of("lagging")]
    assert sorted(indices(reader.frames) + [step for gap in missed for step in gap]) == list(range(2000))


def test_a_slow_viewer_is_told_which_steps_it_missed(serve: Serve) -> None:
    brake = Brake(step=3)
    server = serve(FakeEngine(at=brake))
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 20_000})
        while indices(client.frames)[-1:] != [2]:
            client.next()
        brake.release()
        time.sleep(1.5)  # reads nothing meanwhile: socket buffers fill, then the log runs on
        client.until("finished")
    lagging = client.of("lagging")
    assert lagging, "ten thousand steps fitted into the socket's buffers"
    missed = [step for frame in lagging for step in range(frame["from"], frame["to"] + 1)]
    assert sorted(indices(client.frames) + missed) == list(range(10_000))
    first = lagging[0]["from"]
    page = httpx.get(f"{server.url}/api/runs/{run_id}/steps", params={"from": first, "limit": 2}).json()
    assert [step["index"] for step in page["steps"]] == [first, first + 1]


def test_closing_at_any_moment_leaves_no_traceback_and_the_run_goes_on(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(FakeEngine(at=slow(0.001)))
    runs = []
    with caplog.at_level(logging.WARNING):
        for step in (0, 3, 7):
            client = server.client().ready()
            runs.append(client.start(settings={"max_new_tokens": 400}))
            while indices(client.frames)[-1:] != [step]:
                client.next()
            if step == 3:
                client._socket.socket.close()  # no closing handshake, in the middle of frames
            client.close()
            client.close()
        wait_finished(server.url, runs)
    assert [record.message for record in caplog.records if "drafter not used" not in record.message] == []
    listed = {row["run_id"]: row for row in httpx.get(server.url + "/api/runs").json()["runs"]}
    assert [listed[run_id]["steps"] for run_id in runs] == [200, 200, 200]


def test_a_paused_run_waits_for_its_limit_and_ends_as_cancelled(serve: Serve) -> None:
    with serve(pause_limit_s=0.3).client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 10}, paused=True)
        client.until("state", state="paused")
        began = time.monotonic()
        assert client.until("finished")["summary"]["finish_reason"] == "cancelled"
        assert time.monotonic() - began < 5


# ---- a model that blocks ----


def test_a_blocking_model_call_blocks_nothing_else(serve: Serve) -> None:
    """The socket lives and health answers at once while the worker's thread is inside a model call."""
    brake = Brake(step=2)
    server = serve(FakeEngine(at=brake))
    with server.client() as client, httpx.Client() as http:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 10})
        assert brake.reached.wait(20)
        for _ in range(5):
            began = time.monotonic()
            assert http.get(server.url + "/api/health").json()["runs"]["decoding"] == 1
            assert time.monotonic() - began < 0.2
        assert http.get(f"{server.url}/api/runs/{run_id}/steps").json()["total"] == 2
        client.send("watch", run_id=run_id)
        client.until("started")
        client.send_raw("no json")
        while client.next()["type"] != "error":
            pass
        brake.release()
        client.until("finished")


# ---- failures ----


def test_a_failed_step_is_kept_and_ends_the_run(serve: Serve) -> None:
    server = serve(FakeEngine(fails_at=2))
    with server.client() as client:
        client.ready()
        client.start(settings={"max_new_tokens": 10})
        finished = client.until("finished")
    assert finished["summary"]["finish_reason"] == "error"
    assert client.of("step")[2]["step"]["error"]["depth"] == 1


def test_a_run_that_raises_ends_and_others_go_on(serve: Serve) -> None:
    def at(place: str, run: Any) -> None:
        if run.prompt == "bad" and run.steps == 1:
            raise RuntimeError("out of memory")

    server = serve(FakeEngine(at=at))
    with server.client() as bad, server.client() as good:
        bad.ready()
        good.ready()
        bad.start("bad", settings={"max_new_tokens": 10})
        while (frame := bad.next())["type"] != "error":
            pass
        assert frame["code"] == "internal" and "out of memory" in frame["message"]
        assert bad.until("finished")["summary"]["finish_reason"] == "error"
        good.start(settings={"max_new_tokens": 10})
        assert good.until("finished")["summary"]["finish_reason"] == "length"


# ---- helpers ----


def server_channel(server: Any, run_id: str) -> Any:
    return server.server.service.hub.channels[run_id]


def wait_finished(url: str, runs: list[str]) -> None:
    for _ in range(400):
        states = {row["run_id"]: row["state"] for row in httpx.get(url + "/api/runs").json()["runs"]}
        if all(states[run_id] == "finished" for run_id in runs):
            return
        time.sleep(0.02)
    raise AssertionError(states)


def handshake(host: str, port: str) -> bytes:
    return (
        f"GET /ws/decode HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def text_frame(message: dict[str, Any]) -> bytes:
    payload = json.dumps(message).encode()
    assert len(payload) < 126
    return bytes([0x81, 0x80 | len(payload), 0, 0, 0, 0]) + payload
