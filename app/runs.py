"""The run store: every run and every step in one SQLite file (WAL), as they happen.

Steps and heads are kept as the JSON that viewers and downloads get, so nothing is parsed to be served, and an
export is put together from strings. A listing reads the small table alone: its cost does not depend on how
many steps there are. A commit reaches the operating system before a step is shown to anyone, so a killed
server loses at most the step in flight; only a crash of the machine can take more (`synchronous = NORMAL`).
"""

from __future__ import annotations

import datetime
import fcntl
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from app.protocol import RunState
from app.run_query import RunQuery, select_page
from app.run_schema import index_run, index_text, prepare, settings_cells
from ddtree.trace import Step, Summary, Trace

COLUMNS = (
    "number, run_id, created_at, state, imported, prompt, target, method, steps, committed, lossy, summary,"
    " drafter, budget, temperature, tau, tokens_per_second, tags, notes, parent_id, parent_step"
)
"""Of `runs`, in the order of RunRow's fields."""

_INTERRUPTED = (
    "UPDATE runs SET state = 'interrupted' WHERE state NOT IN ('finished', 'interrupted') RETURNING number"
)
PROMPT_SHOWN = 200
"""Characters of the prompt that a listing carries."""

UNDO_S = 3600.0
"""Seconds for which a deleted run can be brought back while the server runs."""

_HEAD_END = '"steps":[],"summary":null}'


class StoreError(RuntimeError):
    """The store cannot be opened, or does not take a write; the message says where and why."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """What a listing says of a run. `summary` and `tags` are JSON, the former None while there is none; a
    `budget`, `tau` or `tokens_per_second` of -1 is none (of a budget: "auto")."""

    number: int
    run_id: str
    created_at: str
    state: RunState
    imported: bool
    prompt: str
    target: str
    method: str
    steps: int
    committed: int
    lossy: bool
    summary: str | None
    drafter: str = ""
    budget: int = -1
    temperature: float = 0.0
    tau: float = -1.0
    tokens_per_second: float = -1.0
    tags: str = "[]"
    notes: str = ""
    parent_id: str | None = None
    parent_step: int | None = None


@dataclass(frozen=True, slots=True)
class StoredStep:
    step: int
    seq: int
    json: str


def new_run_id() -> str:
    """Sorts by time, fits in file names and URLs: 20250131-235959-1a2b3c."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class RunStore:
    """One server's runs. Writes take turns on one connection; reads borrow connections of their own."""

    def __init__(self, folder: Path, serving: bool = True) -> None:
        """Opens or creates it. A server marks what a killed one left as interrupted, and is the only one that
        serves this folder; an import is another process beside it. Raises StoreError."""
        self.path = folder / "runs.sqlite3"
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._write_lock = threading.RLock()
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if serving:
                    opened.enter_context(_only_owner(folder))
                self._writer = opened.enter_context(closing(self._connect()))
                prepare(self._writer)
                if serving:
                    for (number,) in self._writer.execute(_INTERRUPTED).fetchall():
                        index_text(self._writer, number)
                    self._purge(time.time())
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"the run store {self.path} cannot be opened ({error}): name another folder with --data"
                ) from error
            self._opened = opened.pop_all()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        with self._write_lock, self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
            self._opened.close()

    # ---- writing ----

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside become one commit, or none. Raises StoreError when the disk does not take it."""
        with self._write_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise StoreError(f"the run store {self.path} takes no more: {error}") from error

    def begin_run(self, run_id: str, head: Trace, state: RunState, imported: bool = False) -> None:
        """`head` is the trace without steps and summary. Inside a transaction, like every write below."""
        text = head.to_json()
        assert text.endswith(_HEAD_END)
        fork = head.forked_from
        cursor = self._writer.execute(
            "INSERT INTO runs (run_id, created_at, state, imported, prompt, target, method, steps, committed,"
            " lossy, drafter, budget, temperature, parent_id, parent_step)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?)",
            (
                run_id,
                head.created_at,
                state,
                imported,
                head.prompt.text[:PROMPT_SHOWN],
                head.target.name,
                head.settings.method,
                head.settings.lossy,
                *settings_cells(head.settings.model_dump(mode="json")),
                *((None, None) if fork is None else (fork.run_id, fork.step)),
            ),
        )
        assert cursor.lastrowid is not None
        self._writer.execute("INSERT INTO heads VALUES (?, ?)", (cursor.lastrowid, text))
        index_run(self._writer, cursor.lastrowid, head.prompt.text, head.target.name)

    def add_step(self, run_id: str, step: Step, seq: int, json: str) -> None:
        done = step.committed
        committed = len(done.token_ids) if done is not None else 0
        run = self._writer.execute(
            "UPDATE runs SET steps = steps + 1, committed = committed + :n, lossy = max(lossy, :lossy),"
            " tau = (committed + :n) / (steps + 1.0) WHERE run_id = :run RETURNING number",
            {"n": committed, "lossy": step.settings.lossy, "run": run_id},
        ).fetchone()
        if run is None:
            raise StoreError(f"the run store {self.path} has no run {run_id} to add a step to")
        self._writer.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", (*run, step.index, seq, json))
        if done is not None:
            texts = (str(done.token_ids), "".join(done.texts))
            self._writer.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (*run, step.index, *texts))

    def set_state(self, run_id: str, state: RunState) -> None:
        self._writer.execute("UPDATE runs SET state = ? WHERE run_id = ?", (state, run_id))

    def finish_run(self, run_id: str, summary: Summary) -> None:
        speed = -1.0 if summary.tokens_per_second is None else summary.tokens_per_second
        done = self._writer.execute(
            "UPDATE runs SET state = 'finished', summary = ?, lossy = ?, tokens_per_second = ?"
            " WHERE run_id = ? RETURNING number",
            (summary.model_dump_json(), summary.lossy, speed, run_id),
        ).fetchone()
        if done is not None:
            index_text(self._writer, *done)

    def import_traces(self, traces: Sequence[Trace]) -> list[str]:
        """Whole traces as new runs, in one transaction; their ids."""
        with self.transaction():
            return [self._import(trace) for trace in traces]

    def _import(self, trace: Trace) -> str:
        """Without a summary it was cut off."""
        run_id = new_run_id()
        head = trace.model_copy(update={"steps": [], "summary": None})
        self.begin_run(run_id, head, "interrupted", imported=True)
        for step in trace.steps:
            self.add_step(run_id, step, step.index, step.model_dump_json())
        if trace.summary is not None:
            self.finish_run(run_id, trace.summary)
        else:
            row = self._writer.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,))
            index_text(self._writer, *row.fetchone())
        return run_id

    def annotate(self, run_id: str, tags: list[str] | None, notes: str | None) -> bool:
        """New tags, new notes, or both (None: as they are). Whether there is such a run."""
        with self.transaction():
            row = self._writer.execute(
                "UPDATE runs SET tags = ifnull(?, tags), notes = ifnull(?, notes)"
                " WHERE run_id = ? AND deleted_at IS NULL RETURNING number, tags, notes",
                (None if tags is None else json.dumps(tags, ensure_ascii=False), notes, run_id),
            ).fetchone()
            if row is not None:
                self._writer.execute(
                    "UPDATE words SET tags = ?, notes = ? WHERE rowid = ?",
                    (" ".join(json.loads(row[1])), row[2], row[0]),
                )
        return row is not None

    def delete_run(self, run_id: str) -> bool:
        """Out of sight at once, and for good after UNDO_S or when a server starts. Whether it was there."""
        with self.transaction():
            now = time.time()
            found = self._writer.execute(
                "UPDATE runs SET deleted_at = ? WHERE run_id = ? AND deleted_at IS NULL", (now, run_id)
            ).rowcount
            self._purge(now - UNDO_S)
        return found > 0

    def restore_run(self, run_id: str) -> bool:
        """Bring back what was deleted and is not gone yet. Whether it was there."""
        with self.transaction():
            found = self._writer.execute(
                "UPDATE runs SET deleted_at = NULL WHERE run_id = ? AND deleted_at IS NOT NULL", (run_id,)
            ).rowcount
        return found > 0

    def _purge(self, before: float) -> None:
        """What was deleted before that moment, with all that belongs to it."""
        gone = self._writer.execute("DELETE FROM runs WHERE deleted_at < ? RETURNING number", (before,))
        for row in gone.fetchall():
            for table in ("heads", "steps", "tokens"):
                self._writer.execute(f"DELETE FROM {table} WHERE number = ?", row)
            self._writer.execute("DELETE FROM words WHERE rowid = ?", row)

    # ---- reading ----

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            reader = self._readers.pop() if self._readers else self._connect()
        try:
            yield reader
        finally:
            with self._readers_lock:
                self._readers.append(reader)

    def runs(self, limit: int, query: RunQuery | None = None) -> list[RunRow]:
        """A page of the list, the newest runs first unless `query` says otherwise."""
        with self.reading() as reader:
            rows = select_page(reader, COLUMNS, query or RunQuery(), limit)
        return [_row(row) for row in rows]

    def run(self, run_id: str) -> RunRow | None:
        with self.reading() as reader:
            row = reader.execute(
                f"SELECT {COLUMNS} FROM runs WHERE run_id = ? AND deleted_at IS NULL", (run_id,)
            ).fetchone()
        return None if row is None else _row(row)

    def forks(self, run_id: str) -> list[RunRow]:
        """The runs that were forked from this one, the oldest first."""
        with self.reading() as reader:
            rows = reader.execute(
                f"SELECT {COLUMNS} FROM runs WHERE parent_id = ? AND deleted_at IS NULL ORDER BY number",
                (run_id,),
            ).fetchall()
        return [_row(row) for row in rows]

    def committed(self, row: RunRow, first: int = 0) -> list[tuple[int, list[int]]]:
        """(step, the token ids it committed) of the steps from `first` on."""
        with self.reading() as reader:
            found = reader.execute(
                "SELECT step, token_ids FROM tokens WHERE number = ? AND step >= ? ORDER BY step",
                (row.number, first),
            ).fetchall()
        return [(step, json.loads(text)) for step, text in found]

    def head(self, row: RunRow) -> str:
        """The run's trace as JSON, without steps and summary; empty if the run was deleted meanwhile."""
        with self.reading() as reader:
            found = reader.execute("SELECT head FROM heads WHERE number = ?", (row.number,)).fetchone()
        return "" if found is None else str(found[0])

    def steps(self, row: RunRow, first: int, limit: int) -> list[StoredStep]:
        """At most `limit` steps from index `first` on."""
        with self.reading() as reader:
            rows = reader.execute(
                "SELECT step, seq, json FROM steps WHERE number = ? AND step >= ? ORDER BY step LIMIT ?",
                (row.number, first, limit),
            ).fetchall()
        return [StoredStep(*found) for found in rows]

    def trace_parts(self, row: RunRow, chunk: int = 64) -> Iterator[str]:
        """The run's file, in parts, as long as `row` knows it: what `Trace.to_json` writes, to the byte."""
        yield self.head(row).removesuffix(_HEAD_END) + '"steps":['
        for first in range(0, row.steps, chunk):
            count = min(chunk, row.steps - first)
            steps = self.steps(row, first, count)
            if len(steps) < count:
                raise StoreError(f"run {row.run_id} was deleted while it was being read")
            yield ("," if first else "") + ",".join(step.json for step in steps)
        yield f'],"summary":{row.summary or "null"}}}'


def _row(values: Sequence[Any]) -> RunRow:
    row = RunRow(*values)
    return replace(row, imported=bool(row.imported), lossy=bool(row.lossy))  # SQLite has no booleans


def _only_owner(folder: Path) -> IO[bytes]:
    """A lock that holds while this process lives: a second server would call this one's runs interrupted."""
    lock = (folder / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise OSError("another server is using it") from None
    return lock
