"""A run in other programs' formats: its stages for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from app.api import found_run
from app.runs import RunRow, RunStore
from ddtree.chrome_trace import step_events, track_names
from ddtree.trace import Step

_PAGE = 64  # steps read at once


def exports_router(store: RunStore) -> APIRouter:
    router = APIRouter()

    @router.get("/api/runs/{run_id}/perfetto")
    def perfetto(run_id: str) -> Response:
        """Chrome-trace JSON: a track of steps and one of stages, in microseconds."""
        row = found_run(store, run_id)
        headers = {"Content-Disposition": f'attachment; filename="ddtree-{row.run_id}.perfetto.json"'}
        return StreamingResponse(_parts(store, row), media_type="application/json", headers=headers)

    return router


def _parts(store: RunStore, row: RunRow) -> Iterator[str]:
    yield '{"displayTimeUnit":"ms","traceEvents":['
    yield ",".join(json.dumps(event) for event in track_names(f"{row.run_id} on {row.target}"))
    for event in step_events(_steps(store, row)):
        yield "," + json.dumps(event)
    yield "]}"


def _steps(store: RunStore, row: RunRow) -> Iterator[Step]:
    for first in range(0, row.steps, _PAGE):
        for stored in store.steps(row, first, min(_PAGE, row.steps - first)):
            yield Step.model_validate_json(stored.json)
