"""The layout of the run store's database, and how a file of an older layout becomes one of this.

Layout 1 had `runs`, `heads` and `steps`. Layout 2 adds what the list of runs sorts, filters and edits by
(drafter, budget, temperature, tau, tokens/s, tags, notes, the run it was forked from, when it was deleted),
the committed tokens of each step apart from its JSON, and an index of words. Nothing of layout 1 is dropped
or rewritten, and a migration is one transaction: a file is of one layout or of the other.
"""

from __future__ import annotations

import json
import sqlite3

SCHEMA_VERSION = 2

_LAYOUT_1 = """
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
_LAYOUT_2 = """
ALTER TABLE runs ADD COLUMN drafter TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN budget INTEGER NOT NULL DEFAULT -1;
ALTER TABLE runs ADD COLUMN temperature REAL NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN tau REAL NOT NULL DEFAULT -1;
ALTER TABLE runs ADD COLUMN tokens_per_second REAL NOT NULL DEFAULT -1;
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE runs ADD COLUMN notes TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN parent_id TEXT;
ALTER TABLE runs ADD COLUMN parent_step INTEGER;
ALTER TABLE runs ADD COLUMN deleted_at REAL;
CREATE TABLE tokens (
    number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    token_ids TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (number, step)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(prompt, text, tags, notes, model, tokenize = 'trigram');
CREATE INDEX runs_of_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_deleted ON runs (deleted_at) WHERE deleted_at IS NOT NULL;
"""
SORTS = {
    "date": "number",
    "prompt": "prompt COLLATE NOCASE",
    "model": "target COLLATE NOCASE",
    "method": "method",
    "drafter": "drafter",
    "budget": "budget",
    "temperature": "temperature",
    "steps": "steps",
    "tau": "tau",
    "speed": "tokens_per_second",
}
"""What a list of runs can be sorted by: the expression that the index of that name holds."""


def prepare(connection: sqlite3.Connection) -> None:
    """Create or migrate. Raises OSError for a layout of another version, sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, 1, SCHEMA_VERSION):
            raise OSError(
                f"it was written by another version of this program: layout {found}, not {SCHEMA_VERSION}"
            )
        if found < SCHEMA_VERSION:
            _run(connection, _LAYOUT_1)
            _run(connection, _LAYOUT_2)
            for name, expression in SORTS.items():
                if name != "date":
                    connection.execute(
                        f"CREATE INDEX runs_by_{name} ON runs ({expression}) WHERE deleted_at IS NULL"
                    )
            _fill_in(connection)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement: `executescript` would commit first."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def _fill_in(connection: sqlite3.Connection) -> None:
    """What layout 1 knew only inside its JSON."""
    for number, head in connection.execute("SELECT number, head FROM heads").fetchall():
        trace = json.loads(head)
        settings = trace["settings"]
        connection.execute(
            "UPDATE runs SET drafter = ?, budget = ?, temperature = ?,"
            " tau = CASE WHEN steps > 0 THEN 1.0 * committed / steps ELSE -1 END,"
            " tokens_per_second = ifnull(json_extract(summary, '$.tokens_per_second'), -1) WHERE number = ?",
            (*settings_cells(settings), number),
        )
        connection.execute(
            "INSERT INTO tokens SELECT number, step,"
            " ifnull(json_extract(steps.json, '$.committed.token_ids'), '[]'),"
            " ifnull((SELECT group_concat(value, '') FROM json_each(steps.json, '$.committed.texts')), '')"
            " FROM steps WHERE number = ?",
            (number,),
        )
        index_run(connection, number, trace["prompt"]["text"], trace["target"]["name"])
        index_text(connection, number)


def settings_cells(settings: dict[str, object]) -> tuple[object, object, object]:
    """(drafter, budget, temperature) as columns; a budget that is no number (auto) is -1."""
    budget = settings["budget"]
    plain = settings["method"] == "autoregressive"
    drafter = "" if plain else settings["drafter"] or ""
    return drafter, 0 if plain else budget if isinstance(budget, int) else -1, settings["temperature"]


def index_run(connection: sqlite3.Connection, number: int, prompt: str, model: str) -> None:
    """A run's words, its text still missing."""
    connection.execute(
        "INSERT INTO words (rowid, prompt, text, tags, notes, model) VALUES (?, ?, '', '', '', ?)",
        (number, prompt, model),
    )


def index_text(connection: sqlite3.Connection, number: int) -> None:
    """The committed text, once it grows no longer: an index of words is no place to append to."""
    (text,) = connection.execute(
        "SELECT ifnull(group_concat(text, ''), '') FROM"
        " (SELECT text FROM tokens WHERE number = ? ORDER BY step)",
        (number,),
    ).fetchone()
    connection.execute("UPDATE words SET text = ? WHERE rowid = ?", (text, number))
