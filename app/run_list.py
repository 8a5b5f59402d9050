"""The list of runs over HTTP: pages of it, tags and notes, delete and undo, runs or the table as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from app.api import found_run, run_json
from app.bodies import parse_body, read_body
from app.errors import ApiError, shown
from app.hub import Hub
from app.run_query import RunQuery, cursor_of, cursor_text
from app.runs import RunRow, RunStore
from app.settings import MIB

MAX_TAGS = 32
MAX_NOTES = 20_000
MAX_EXPORTED = 200
"""Runs in one file: their ids stand in the URL."""

_PAGE = 500
_EDIT_BYTES = MIB // 2
_KEYS = {
    "date": "number",
    "prompt": "prompt",
    "model": "target",
    "method": "method",
    "drafter": "drafter",
    "budget": "budget",
    "temperature": "temperature",
    "steps": "steps",
    "tau": "tau",
    "speed": "tokens_per_second",
}
"""The field of a row that a sort goes by."""

Sort = Literal[
    "date", "prompt", "model", "method", "drafter", "budget", "temperature", "steps", "tau", "speed"
]
Order = Literal["asc", "desc"]
Search = Annotated[str, Query(max_length=400)]
Tag = Annotated[str, Field(min_length=1, max_length=64, pattern=r'^[^\x00-\x1f,"]+$')]


class Edit(BaseModel):
    """New tags, new notes, or both; what is left out stays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tags: list[Tag] | None = Field(None, max_length=MAX_TAGS)
    notes: str | None = Field(None, max_length=MAX_NOTES)


def run_list_router(store: RunStore, hub: Hub) -> APIRouter:
    """Included before the routes of /api/runs/{run_id}: `export` is no run."""
    router = APIRouter()

    @router.get("/api/runs")
    def runs(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        sort: Sort = "date",
        order: Order = "desc",
        search: Search = "",
        after: Annotated[str | None, Query(max_length=2000)] = None,
    ) -> dict[str, Any]:
        """The newest first unless told otherwise; `next` is the `after` of the following page, null on the
        last."""
        query = RunQuery(sort, order == "desc", search, None if after is None else _place(after))
        rows = store.runs(limit + 1, query)
        page = rows[:limit]
        more = len(rows) > limit
        return {
            "runs": [run_json(row) for row in page],
            "next": cursor_text(getattr(page[-1], _KEYS[sort]), page[-1].number) if more else None,
        }

    @router.get("/api/runs/export")
    def export(ids: Annotated[str, Query(max_length=8000)]) -> Response:
        """Several runs as one file: a list of traces, which `ddtree check` and an import take."""
        rows = [found_run(store, run_id) for run_id in _ids(ids)]
        headers = {"Content-Disposition": f'attachment; filename="ddtree-{len(rows)}-runs.json"'}
        return StreamingResponse(_list_parts(store, rows), media_type="application/json", headers=headers)

    @router.get("/api/runs.csv")
    def table(
        sort: Sort = "date",
        order: Order = "desc",
        search: Search = "",
        ids: Annotated[str | None, Query(max_length=8000)] = None,
    ) -> Response:
        """The list as a table: every run that the search finds, or those named."""
        chosen = None if ids is None else tuple(_ids(ids))
        query = RunQuery(sort, order == "desc", search, ids=chosen)
        headers = {"Content-Disposition": 'attachment; filename="ddtree-runs.csv"'}
        return StreamingResponse(_csv_parts(store, query), media_type="text/csv", headers=headers)

    @router.patch("/api/runs/{run_id}")
    async def edit(run_id: str, request: Request) -> dict[str, Any]:
        given = parse_body(Edit, await read_body(request, _EDIT_BYTES))
        tags = None if given.tags is None else list(dict.fromkeys(filter(None, map(str.strip, given.tags))))
        if not store.annotate(run_id, tags, given.notes):
            raise _no_run(run_id)
        return run_json(found_run(store, run_id))

    @router.delete("/api/runs/{run_id}", status_code=204)
    def delete(run_id: str) -> None:
        """Takes the run out of every list; /restore brings it back for an hour, while the server runs."""
        if run_id in hub.channels:
            raise ApiError(409, "run_live", f"run {run_id} is live: stop it first", "run_id")
        if not store.delete_run(run_id):
            raise _no_run(run_id)

    @router.post("/api/runs/{run_id}/restore")
    def restore(run_id: str) -> dict[str, Any]:
        if not store.restore_run(run_id):
            raise ApiError(
                404, "not_found", f"there is no deleted run {shown(run_id)} to bring back", "run_id"
            )
        return run_json(found_run(store, run_id))

    return router


def _no_run(run_id: str) -> ApiError:
    return ApiError(404, "not_found", f"there is no run {shown(run_id)}", "run_id")


def _place(text: str) -> tuple[Any, int]:
    try:
        return cursor_of(text)
    except ValueError as error:
        raise ApiError(422, "bad_value", f"after cannot be {shown(text)}: {error}", "after") from None


def _ids(text: str) -> list[str]:
    ids = list(dict.fromkeys(filter(None, text.split(","))))
    if not 1 <= len(ids) <= MAX_EXPORTED:
        message = f"ids names {len(ids)} runs: name 1 to {MAX_EXPORTED}, with commas between them"
        raise ApiError(422, "bad_value", message, "ids")
    return ids


def _list_parts(store: RunStore, rows: list[RunRow]) -> Iterator[str]:
    for i, row in enumerate(rows):
        yield "," if i else "["
        yield from store.trace_parts(row)
    yield "]"


# ---- the table ----

CSV_COLUMNS = (
    "run_id", "created_at", "state", "prompt", "model", "method", "drafter", "budget", "temperature", "steps",
    "committed", "tau", "tokens_per_second", "lossy", "imported", "tags", "notes", "forked_from",
    "forked_at_step",
)  # fmt: skip


def _csv_parts(store: RunStore, query: RunQuery) -> Iterator[str]:
    yield _csv_lines([list(CSV_COLUMNS)])
    while True:
        rows = store.runs(_PAGE, query)
        yield _csv_lines([_cells(row) for row in rows])
        if len(rows) < _PAGE:
            return
        last = rows[-1]
        place = (getattr(last, _KEYS[query.sort]), last.number)
        query = RunQuery(query.sort, query.descending, query.search, place, query.ids)


def _csv_lines(rows: list[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([_harmless(cell) for cell in row] for row in rows)
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    """A text that a spreadsheet would calculate is marked as text."""
    starts = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{cell}" if starts else cell


def _cells(row: RunRow) -> list[Any]:
    run = run_json(row)
    fork = run["forked_from"] or {"run_id": "", "step": ""}
    return [
        *(run[name] for name in ("run_id", "created_at", "state", "prompt", "target", "method", "drafter")),
        *(run[name] for name in ("budget", "temperature", "steps", "committed", "tau", "tokens_per_second")),
        "yes" if row.lossy else "no",
        "yes" if row.imported else "no",
        "; ".join(run["tags"]),
        row.notes,
        fork["run_id"],
        fork["step"],
    ]
