"""A store of the first layout is opened without a loss."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from test_runs import keep, made_run

from app.run_query import RunQuery
from app.run_schema import prepare
from app.runs import RunStore, StoreError
from ddtree.settings import Settings
from ddtree.trace import Trace

# As it was written: a copy on purpose, for the layout of the past does not change.
OLD_LAYOUT = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, created_at TEXT NOT NULL,
    state TEXT NOT NULL, imported INTEGER NOT NULL, prompt TEXT NOT NULL, target TEXT NOT NULL,
    method TEXT NOT NULL, steps INTEGER NOT NULL, committed INTEGER NOT NULL, lossy INTEGER NOT NULL,
    summary TEXT
);
CREATE TABLE heads (number INTEGER PRIMARY KEY, head TEXT NOT NULL);
CREATE TABLE steps (
    number INTEGER NOT NULL, step INTEGER NOT NULL, seq INTEGER NOT NULL, json TEXT NOT NULL,
    PRIMARY KEY (number, step)
);
PRAGMA user_version = 1;
"""


def old_store(folder: Path) -> list[Trace]:
    """A finished run, one that a kill interrupted, and one without steps, as the old program left them."""
    connection = sqlite3.connect(folder / "runs.sqlite3")
    connection.executescript(OLD_LAYOUT)
    traces = []
    for number, (steps, state) in enumerate([(4, "finished"), (3, "running"), (0, "waiting")], 1):
        head, made, summary = made_run(steps, f"prompt {number} about rivers")
        head = head.model_copy(update={"settings": Settings(budget=number, temperature=0.5, drafter="ngram")})
        ended = summary.model_copy(update={"tokens_per_second": 12.5}) if state == "finished" else None
        trace = head.model_copy(update={"steps": made, "summary": ended})
        traces.append(trace)
        connection.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, 0, ?, 'fake', 'ddtree', ?, ?, 0, ?)",
            (
                *(number, f"run-{number}", head.created_at, state, head.prompt.text, steps, 2 * steps),
                None if ended is None else ended.model_dump_json(),
            ),
        )
        connection.execute("INSERT INTO heads VALUES (?, ?)", (number, head.to_json()))
        for step in made:
            values = (number, step.index, step.index + 1, step.model_dump_json())
            connection.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", values)
    connection.commit()
    connection.close()
    return traces


def test_every_run_of_an_old_store_is_there_to_the_byte(tmp_path: Path) -> None:
    traces = old_store(tmp_path)
    store = RunStore(tmp_path)
    rows = {row.run_id: row for row in store.runs(10)}
    assert list(rows) == ["run-3", "run-2", "run-1"]
    assert [row.state for row in rows.values()] == ["interrupted", "interrupted", "finished"]
    for number, trace in enumerate(traces, 1):
        row = rows[f"run-{number}"]
        assert "".join(store.trace_parts(row)) == trace.to_json()
        assert store.committed(row) == [
            (step.index, step.committed.token_ids) for step in trace.steps if step.committed
        ]
    first, last = rows["run-1"], rows["run-3"]
    assert (first.drafter, first.budget, first.temperature) == ("ngram", 1, 0.5)
    assert (first.tau, first.tokens_per_second, first.tags, first.notes) == (2.0, 12.5, "[]", "")
    assert (last.tau, last.tokens_per_second, last.parent_id) == (-1.0, -1.0, None)
    store.close()


def test_an_old_stores_words_are_found_and_new_runs_go_on_in_it(tmp_path: Path) -> None:
    traces = old_store(tmp_path)
    assert traces[0].steps[0].committed is not None
    RunStore(tmp_path).close()
    store = RunStore(tmp_path)  # and a second start migrates nothing again
    new = keep(store, 2, prompt="lakes")
    assert [row.run_id for row in store.runs(10, RunQuery(search="RIVERS prompt"))] == [
        "run-3", "run-2", "run-1",
    ]  # fmt: skip
    text = "".join(traces[0].steps[0].committed.texts)
    assert "run-1" in [row.run_id for row in store.runs(10, RunQuery(search=f'"{text}2"'))]
    assert [row.run_id for row in store.runs(1)] == [new]
    store.close()


def test_a_migration_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("app.run_schema.index_text", lambda *_: 1 / 0)
        connection = sqlite3.connect(tmp_path / "runs.sqlite3", isolation_level=None)
        with pytest.raises(ZeroDivisionError):
            prepare(connection)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        connection.close()
    assert "tokens" not in names
    store = RunStore(tmp_path)
    assert len(store.runs(10)) == 3
    store.close()


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "runs.sqlite3")
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(StoreError, match="layout 3, not 2"):
        RunStore(tmp_path)
