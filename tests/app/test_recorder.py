"""The recorder: stored before it is shown, in order, counted once; and what happens when the disk is full."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
from fake_engine import FakeEngine, FakeRun, slow
from fake_server import Serve

from app.events import RunBegan, RunEnded, StateChanged, StepDone
from app.metrics import Metrics
from app.recorder import Entry, Opened, Publication, Recorder
from app.runs import RunStore
from ddtree.settings import Settings


def test_what_is_shown_is_stored_already(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    shown: list[Publication] = []
    stored_when_shown: list[int] = []

    def publish(publications: list[Publication]) -> None:
        row = store.run("r")
        assert row is not None
        for publication in publications:
            if isinstance(publication, Entry) and publication.step is not None:
                stored_when_shown.append(row.steps - publication.step)
        shown.extend(publications)

    recorder = Recorder(store, Metrics(), publish, give_up=lambda run_id: None)
    decoder = FakeEngine().new_decoder(Settings(max_new_tokens=40))
    run: FakeRun = decoder.start("p")
    recorder.start()
    recorder.put(RunBegan("r", decoder.head(run), opened=lambda run_id: None))
    recorder.put(StateChanged("r", "running"))
    steps = []
    while run.finish_reason is None:
        steps.append(decoder.step(run))
        recorder.put(StepDone("r", steps[-1]))
    recorder.put(RunEnded("r", decoder.summary(run)))
    recorder.close()
    assert isinstance(shown[0], Opened)
    entries = [entry for entry in shown if isinstance(entry, Entry)]
    assert [entry.seq for entry in entries] == list(range(1, 23))
    assert [entry.kind for entry in entries] == ["state", *["step"] * 20, "finished"]
    assert len(stored_when_shown) == 20 and min(stored_when_shown) >= 1
    frame = json.loads(entries[5].text)
    assert frame == {"type": "step", "seq": 6, "run_id": "r", "step": json.loads(steps[4].model_dump_json())}
    store.close()


def test_a_full_disk_stops_the_run_tells_why_and_leaves_the_server_alive(serve: Serve) -> None:
    server = serve(FakeEngine(at=slow(0.002)))
    store: Any = server.server.service.store
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 50_000})
        client.until("step")
        with store.transaction():
            (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
            store._writer.execute(f"PRAGMA max_page_count = {pages + 4}")
        while (frame := client.next())["type"] != "error":
            pass
        assert frame["code"] == "internal" and "full" in frame["message"]
        assert client.until_any("finished")["summary"]["finish_reason"] == "cancelled"
        store._writer.execute("PRAGMA max_page_count = 1000000")
        client.start(settings={"max_new_tokens": 4})
        client.until("finished")
    listed = {row["run_id"]: row for row in httpx.get(server.url + "/api/runs").json()["runs"]}
    assert listed[run_id]["steps"] > 0
    trace = httpx.get(f"{server.url}/api/runs/{run_id}/trace").json()
    assert len(trace["steps"]) == listed[run_id]["steps"]


def test_a_slow_disk_holds_the_worker_and_not_the_memory(serve: Serve) -> None:
    """While the store cannot be written, events wait up to a bound, then decoding does; nothing is lost."""
    server = serve()
    store: Any = server.server.service.store
    recorder: Any = server.server.service.recorder
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 2000}, paused=True)
        client.until("state", state="paused")
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            with store.transaction():
                holding.set()
                assert done.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        assert holding.wait(20)
        client.send("resume")
        while not recorder._events.full():
            pass
        assert client.silent(0.1)
        done.set()
        holder.join()
        client.until("finished")
    page = httpx.get(f"{server.url}/api/runs/{run_id}/steps", params={"limit": 1000}).json()
    assert page["total"] == 1000 and [step["index"] for step in page["steps"]] == list(range(1000))
