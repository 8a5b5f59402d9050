"""The run store: every run and every step in one SQLite file (WAL), as they happen.

Steps and heads are kept as the JSON that viewers and downloads get, so nothing is parsed to be served, and an
export is put together from strings. A listing reads the small table alone: its cost does not depend on how
many steps there are. A commit reaches the operating system before a step is shown to anyone, so a killed
server loses at most the step in flight; only a crash of the machine can take more (`synchronous = NORMAL`).
"""

from __future__ import annotations

import datetime
import fcntl
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from app.protocol import RunState
from ddtree.trace import Step, Summary, Trace

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL,
    state TEXT NOT NULL,
    imported INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    target TEXT NOT NULL,
    method TEXT NOT NULL,
    steps INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    lossy INTEGER NOT NULL,
    summary TEXT
);
CREATE TABLE IF NOT EXISTS heads (number INTEGER PRIMARY KEY, head TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    json TEXT NOT NULL,
    PRIMARY KEY (number, step)
);
"""
_COLUMNS = (
    "number, run_id, created_at, state, imported, prompt, target, method, steps, committed, lossy, summary"
)
_INTERRUPTED = "UPDATE runs SET state = 'interrupted' WHERE state NOT IN ('finished', 'interrupted')"
PROMPT_SHOWN = 200
"""Characters of the prompt that a listing carries."""

_HEAD_END = '"steps":[],"summary":null}'


class StoreError(RuntimeError):
    """The store cannot be opened, or does not take a write; the message says where and why."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """What a listing says of a run; `summary` is JSON, None while there is none."""

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
                self._prepare()
                if serving:
                    self._writer.execute(_INTERRUPTED)
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

    def _prepare(self) -> None:
        (found,) = self._writer.execute("PRAGMA user_version").fetchone()
        if found not in (0, SCHEMA_VERSION):
            raise OSError(
                f"it was written by another version of this program: layout {found}, not {SCHEMA_VERSION}"
            )
        self._writer.executescript(_SCHEMA)
        self._writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

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
        cursor = self._writer.execute(
            "INSERT INTO runs (run_id, created_at, state, imported, prompt, target, method, steps, committed,"
            " lossy) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?)",
            (
                run_id,
                head.created_at,
                state,
                imported,
                head.prompt.text[:PROMPT_SHOWN],
                head.target.name,
                head.settings.method,
                head.settings.lossy,
            ),
        )
        self._writer.execute("INSERT INTO heads VALUES (?, ?)", (cursor.lastrowid, text))

    def add_step(self, run_id: str, step: Step, seq: int, json: str) -> None:
        committed = len(step.committed.token_ids) if step.committed is not None else 0
        run = self._writer.execute(
            "UPDATE runs SET steps = steps + 1, committed = committed + ?, lossy = max(lossy, ?)"
            " WHERE run_id = ? RETURNING number",
            (committed, step.settings.lossy, run_id),
        ).fetchone()
        if run is None:
            raise StoreError(f"the run store {self.path} has no run {run_id} to add a step to")
        self._writer.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", (*run, step.index, seq, json))

    def set_state(self, run_id: str, state: RunState) -> None:
        self._writer.execute("UPDATE runs SET state = ? WHERE run_id = ?", (state, run_id))

    def finish_run(self, run_id: str, summary: Summary) -> None:
        self._writer.execute(
            "UPDATE runs SET state = 'finished', summary = ?, lossy = ? WHERE run_id = ?",
            (summary.model_dump_json(), summary.lossy, run_id),
        )

    def import_trace(self, trace: Trace) -> str:
        """A whole trace as a new run, in one transaction; its id. Without a summary it was cut off."""
        run_id = new_run_id()
        with self.transaction():
            head = trace.model_copy(update={"steps": [], "summary": None})
            self.begin_run(run_id, head, "interrupted", imported=True)
            for step in trace.steps:
                self.add_step(run_id, step, step.index, step.model_dump_json())
            if trace.summary is not None:
                self.finish_run(run_id, trace.summary)
        return run_id

    def delete_run(self, run_id: str) -> bool:
        """Whether there was such a run."""
        with self.transaction():
            row = self._writer.execute(
                "DELETE FROM runs WHERE run_id = ? RETURNING number", (run_id,)
            ).fetchone()
            if row is not None:
                self._writer.execute("DELETE FROM heads WHERE number = ?", row)
                self._writer.execute("DELETE FROM steps WHERE number = ?", row)
        return row is not None

    # ---- reading ----

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            reader = self._readers.pop() if self._readers else self._connect()
        try:
            yield reader
        finally:
            with self._readers_lock:
                self._readers.append(reader)

    def runs(self, limit: int, before: int | None = None) -> list[RunRow]:
        """The newest runs first; those with a number below `before`."""
        below = 2**62 if before is None else before
        with self._reader() as reader:
            rows = reader.execute(
                f"SELECT {_COLUMNS} FROM runs WHERE number < ? ORDER BY number DESC LIMIT ?", (below, limit)
            ).fetchall()
        return [_row(row) for row in rows]

    def run(self, run_id: str) -> RunRow | None:
        with self._reader() as reader:
            row = reader.execute(f"SELECT {_COLUMNS} FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return None if row is None else _row(row)

    def head(self, row: RunRow) -> str:
        """The run's trace as JSON, without steps and summary; empty if the run was deleted meanwhile."""
        with self._reader() as reader:
            found = reader.execute("SELECT head FROM heads WHERE number = ?", (row.number,)).fetchone()
        return "" if found is None else str(found[0])

    def steps(self, row: RunRow, first: int, limit: int) -> list[StoredStep]:
        """At most `limit` steps from index `first` on."""
        with self._reader() as reader:
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
