"""The HTTP API: health, models, a run and its steps, traces in and out, the schema, metrics.

Every fault is answered with {code, message, field}.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.bodies import body_parts
from app.errors import ApiError, shown
from app.hub import Hub
from app.importing import Importer
from app.metrics import CONTENT_TYPE, Metrics
from app.resources import version
from app.runs import RunRow, RunStore
from app.settings import MIB, ServerSettings
from app.worker import Worker
from ddtree.models import list_models
from ddtree.trace import Trace

MAX_STEPS_CHARS = 8 * MIB
"""A page of steps ends after the step that passes this."""


def api_router(
    settings: ServerSettings, store: RunStore, hub: Hub, worker: Worker, metrics: Metrics
) -> APIRouter:
    router = APIRouter()
    importer = Importer(settings.data)
    began = time.monotonic()

    @router.get("/api/health")
    async def health() -> dict[str, Any]:
        status = worker.status
        return {
            "status": "ok",
            "version": version(),
            "uptime_s": round(time.monotonic() - began, 3),
            "model": {"state": status.state, "message": status.message, "progress": status.progress},
            "runs": {"decoding": worker.decoding, "waiting": worker.waiting, "paused": worker.paused},
            "viewers": len(hub.viewers),
        }

    @router.get("/api/models")
    def models() -> dict[str, Any]:
        """What is loaded, and the names that `--model` and `--draft-model` take."""
        status = worker.status
        loaded = status.description
        return {
            "state": status.state,
            "message": status.message,
            "target": None if loaded is None else loaded.target.model_dump(mode="json"),
            "drafters": []
            if loaded is None
            else [drafter.model_dump(mode="json") for drafter in loaded.drafters],
            "default_drafter": None if loaded is None else loaded.default_drafter,
            "has_chat_template": None if loaded is None else loaded.has_chat_template,
            "engine": None if loaded is None else loaded.engine.model_dump(mode="json"),
            "known": [dataclasses.asdict(model) for model in list_models()],
        }

    @router.get("/api/schema/trace")
    def schema() -> dict[str, Any]:
        return trace_schema()

    @router.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @router.post("/api/traces", status_code=201)
    async def import_trace(request: Request) -> dict[str, Any]:
        return await importer.take(body_parts(request, settings.max_upload_bytes))

    _add_runs(router, store)
    return router


def found_run(store: RunStore, run_id: str) -> RunRow:
    row = store.run(run_id)
    if row is None:
        raise ApiError(404, "not_found", f"there is no run {shown(run_id)}", "run_id")
    return row


def _add_runs(router: APIRouter, store: RunStore) -> None:
    found = functools.partial(found_run, store)

    @router.get("/api/runs/{run_id}")
    def run(run_id: str) -> dict[str, Any]:
        """What the listing says, the head of the trace, and what was forked from it."""
        row = found(run_id)
        head = json.loads(store.head(row) or "{}")
        return {
            **run_json(row),
            "head": {k: v for k, v in head.items() if k not in ("steps", "summary")},
            "forks": [run_json(fork) for fork in store.forks(row.run_id)],
        }

    @router.get("/api/runs/{run_id}/steps")
    def steps(
        run_id: str,
        first: Annotated[int, Query(alias="from", ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Trace steps from index `from` on; `next` is the `from` of the following page, null on the last."""
        row = found(run_id)
        taken, chars = [], 0
        for step in store.steps(row, first, limit):
            taken.append(step.json)
            chars += len(step.json)
            if chars > MAX_STEPS_CHARS:
                break
        following = first + len(taken)
        head = {
            "run_id": row.run_id,
            "from": first,
            "total": row.steps,
            "next": following if taken and following < row.steps else None,
        }
        text = json.dumps(head)[:-1] + ', "steps": [' + ",".join(taken) + "]}"
        return Response(text, media_type="application/json")

    @router.get("/api/runs/{run_id}/trace")
    def trace(run_id: str) -> Response:
        """The run as a file; of a run that goes on, what there is of it."""
        row = found(run_id)
        disposition = f'attachment; filename="ddtree-{row.run_id}.json"'
        return StreamingResponse(
            store.trace_parts(row),
            media_type="application/json",
            headers={"Content-Disposition": disposition},
        )


def run_json(row: RunRow) -> dict[str, Any]:
    """A run as listings show it."""
    return {
        "run_id": row.run_id,
        "created_at": row.created_at,
        "state": row.state,
        "imported": row.imported,
        "prompt": row.prompt,
        "target": row.target,
        "method": row.method,
        "steps": row.steps,
        "committed": row.committed,
        "lossy": row.lossy,
        "summary": None if row.summary is None else json.loads(row.summary),
        "drafter": row.drafter or None,
        "budget": "auto" if row.budget < 0 else row.budget,
        "temperature": row.temperature,
        "tau": None if row.tau < 0 else row.tau,
        "tokens_per_second": None if row.tokens_per_second < 0 else row.tokens_per_second,
        "tags": json.loads(row.tags),
        "notes": row.notes,
        "forked_from": None if row.parent_id is None else {"run_id": row.parent_id, "step": row.parent_step},
    }


@functools.cache
def trace_schema() -> dict[str, Any]:
    return Trace.model_json_schema()


async def answer_error(_: Request, error: Exception) -> JSONResponse:
    """ApiError as HTTP."""
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)
