"""The run store: what is kept, what a second server or a full disk does, and what things cost."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine, FakeRun

from app.run_query import RunQuery
from app.runs import RunStore, StoreError, new_run_id
from ddtree.settings import Settings
from ddtree.trace import Step, Summary, Trace


def made_run(steps: int, prompt: str = "p") -> tuple[Trace, list[Step], Summary]:
    decoder = FakeEngine().new_decoder(Settings(max_new_tokens=10_000))
    run: FakeRun = decoder.start(prompt)
    made = [decoder.step(run) for _ in range(steps)]
    run.cancel()
    return decoder.head(run), made, decoder.summary(run)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore(tmp_path)
    yield store
    store.close()


def keep(store: RunStore, steps: int, finished: bool = True, prompt: str = "p") -> str:
    head, made, summary = made_run(steps, prompt)
    run_id = new_run_id()
    with store.transaction():
        store.begin_run(run_id, head, "running")
        for step in made:
            store.add_step(run_id, step, step.index + 1, step.model_dump_json())
        if finished:
            store.finish_run(run_id, summary)
    return run_id


def test_a_run_is_put_together_as_the_trace_writes_itself(store: RunStore) -> None:
    head, made, summary = made_run(150)
    run_id = keep(store, 150)
    row = store.run(run_id)
    assert row is not None and (row.steps, row.committed, row.state) == (150, 300, "finished")
    whole = head.model_copy(update={"steps": made, "summary": summary})
    assert "".join(store.trace_parts(row)) == whole.to_json()
    found = store.steps(row, 148, 10)
    assert [(step.step, step.seq) for step in found] == [(148, 149), (149, 150)]
    assert found[0].json == made[148].model_dump_json()


def test_what_a_killed_server_left_is_interrupted(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    live, done = keep(store, 3, finished=False), keep(store, 2)
    store.close()
    store = RunStore(tmp_path)
    states = {row.run_id: (row.state, row.steps) for row in store.runs(10)}
    assert states == {live: ("interrupted", 3), done: ("finished", 2)}
    row = store.run(live)
    assert row is not None and row.summary is None
    assert "".join(store.trace_parts(row)).endswith('],"summary":null}')
    store.close()


def test_a_second_server_on_one_store_is_told_so(tmp_path: Path) -> None:
    first = RunStore(tmp_path)
    with pytest.raises(StoreError, match=r"another server is using it.*--data"):
        RunStore(tmp_path)
    first.close()
    RunStore(tmp_path).close()


def test_a_store_of_another_layout_or_no_store_at_all_is_named(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "runs.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="layout 99"):
        RunStore(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "runs.sqlite3").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        RunStore(tmp_path / "broken")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be opened"):
        RunStore(tmp_path / "file")


def test_a_transaction_is_all_or_nothing(store: RunStore) -> None:
    head, made, _ = made_run(1)
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.begin_run("x", head, "running")
        raise ZeroDivisionError
    assert store.run("x") is None
    with pytest.raises(StoreError, match="no run x"), store.transaction():
        store.add_step("x", made[0], 1, "{}")
    assert keep(store, 1)


def test_a_full_disk_is_a_store_error_and_what_was_stored_stays(store: RunStore) -> None:
    run_id = keep(store, 3)
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        keep(store, 500)
    assert [row.run_id for row in store.runs(10)] == [run_id]


def test_deleting_hides_at_once_and_takes_everything_along_later(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run_id, other = keep(store, 5, prompt="rivers"), keep(store, 5, prompt="rivers")
    row = store.run(run_id)
    assert row is not None and store.delete_run(run_id)
    assert not store.delete_run(run_id) and store.run(run_id) is None
    assert [row.run_id for row in store.runs(10)] == [other]
    assert [row.run_id for row in store.runs(10, RunQuery(search="rivers"))] == [other]
    assert not store.restore_run(other) and store.restore_run(run_id)
    assert [row.run_id for row in store.runs(10)] == [other, run_id]
    assert store.delete_run(run_id)
    store.close()
    store = RunStore(tmp_path)  # a server that starts clears up
    assert not store.restore_run(run_id)
    assert store.steps(row, 0, 10) == []
    with pytest.raises(StoreError, match="deleted"):
        list(store.trace_parts(row))
    with store.reading() as reader:
        left = [
            reader.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("heads", "tokens", "words")
        ]
    assert left == [1, 5, 1]
    store.close()


def test_listing_costs_the_same_whatever_the_number_of_steps(tmp_path: Path) -> None:
    """Counted in the database's own work: virtual machine steps in units of 100, not in noisy seconds."""

    def work(folder: Path, steps: int) -> int:
        store = RunStore(folder)
        for _ in range(20):
            keep(store, steps)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1

        with store.reading() as reader:
            reader.set_progress_handler(tick, 100)
        assert len(store.runs(20)) == 20
        store.close()
        return ticks

    assert work(tmp_path / "few", 1) == work(tmp_path / "many", 100)


def test_storing_a_step_takes_well_under_a_millisecond(store: RunStore) -> None:
    """The median commit of one step, as the recorder does it; 5 ms leaves room for a busy machine."""
    head, made, _ = made_run(200)
    texts = [step.model_dump_json() + " " * 20_000 for step in made]
    with store.transaction():
        store.begin_run("x", head, "running")
    took = []
    for step, text in zip(made, texts, strict=True):
        began = time.perf_counter()
        with store.transaction():
            store.add_step("x", step, step.index, text)
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.005
