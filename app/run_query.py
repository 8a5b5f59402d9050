"""Pages of the list of runs: sorted by a column, narrowed by words, each page from where the last one ended.

A page costs the same whatever the number of runs: it is read along an index, from a key on (no offsets), and
runs of equal keys stand by number. Words of three characters and more are looked up in a trigram index;
shorter ones, which have no trigram, are compared with the short columns of the runs that come by.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.run_schema import SORTS

_SHORT = ("prompt", "target", "tags", "notes")
_MOST_WORDS = 16
_WORD = re.compile(r'(tag:)?(?:"([^"]+)"|(\S+))')


@dataclass(frozen=True, slots=True)
class RunQuery:
    """`after` is the (key, number) of the last row of the page before; `ids` narrows to those runs."""

    sort: str = "date"
    descending: bool = True
    search: str = ""
    after: tuple[Any, int] | None = None
    ids: tuple[str, ...] | None = None


def cursor_text(key: Any, number: int) -> str:
    """A place in the list, for a URL."""
    return base64.urlsafe_b64encode(json.dumps([key, number]).encode()).decode().rstrip("=")


def cursor_of(text: str) -> tuple[Any, int]:
    """What `cursor_text` wrote. Raises ValueError for anything else."""
    try:
        key, number = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"it is no place that this server named ({error})") from None
    if not isinstance(key, (str, int, float)) or type(number) is not int or abs(number) >= 2**63:
        raise ValueError("it is no place that this server named")
    return key, number


def select_page(reader: sqlite3.Connection, columns: str, query: RunQuery, limit: int) -> list[Any]:
    """Rows of `columns`, at most `limit`. The ties of the last key come first, then what lies beyond it: each
    of the two is a walk along the index."""
    expression = SORTS[query.sort]
    where, values = _narrowed(query)
    order, beyond = ("DESC", "<") if query.descending else ("ASC", ">")

    def select(more: str, *given: Any, most: int) -> list[Any]:
        return reader.execute(
            f"SELECT {columns} FROM runs WHERE deleted_at IS NULL{where}{more}"
            f" ORDER BY {expression} {order}, number {order} LIMIT ?",
            (*values, *given, most),
        ).fetchall()

    if query.after is None:
        return select("", most=limit)
    key, number = query.after
    if query.sort == "date":
        return select(f" AND number {beyond} ?", number, most=limit)
    ties = select(f" AND {expression} = ? AND number {beyond} ?", key, number, most=limit)
    if len(ties) == limit:
        return ties
    return ties + select(f" AND {expression} {beyond} ?", key, most=limit - len(ties))


def _narrowed(query: RunQuery) -> tuple[str, list[Any]]:
    """Conditions for the words of a search: all must be there, "several words" in quotation marks as they
    stand, `tag:NAME` or `tag:"A NAME"` as a whole tag."""
    where, values = "", list[Any]()
    for tag, phrase, single in _WORD.findall(query.search)[:_MOST_WORDS]:
        word = phrase or single
        if tag:
            where += " AND EXISTS (SELECT 1 FROM json_each(tags) WHERE lower(value) = lower(?))"
            values.append(word)
        elif len(word) >= 3:
            where += " AND number IN (SELECT rowid FROM words WHERE words MATCH ?)"
            values.append('"' + word.replace('"', '""') + '"')
        else:
            where += " AND (" + " OR ".join(f"instr(lower({name}), lower(?))" for name in _SHORT) + ")"
            values += [word] * len(_SHORT)
    if query.ids is not None:
        where += f" AND run_id IN ({_marks(query.ids)})"
        values += query.ids
    return where, values


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
