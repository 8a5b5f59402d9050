"""Races: two to four runs on one prompt and seed, started together and remembered together.

The worker decodes them step by step in turn on its one device, like any runs; a race is the link between
them, so it goes on without viewers and opens again when it is over. Links are kept in a small database of
their own beside the runs, which may be deleted one by one.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import sqlite3
import threading
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.api import run_json
from app.bodies import parse_body, read_body
from app.errors import ApiError, explain, shown
from app.protocol import ErrorFrame
from app.runs import RunStore, StoreError, new_run_id
from app.settings import MAX_PROMPT_CHARS, MIB
from app.worker import Begin, Control, Worker
from ddtree.settings import Settings

FEWEST, MOST = 2, 4
_MAX_BODY = MIB
_LISTED = 50
_HTTP_STATUS = {"not_ready": 503, "queue_full": 503, "internal": 500}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lanes (
    race_id TEXT NOT NULL, created_at TEXT NOT NULL, lane INTEGER NOT NULL, run_id TEXT NOT NULL,
    PRIMARY KEY (race_id, lane)
);
"""


class RaceRequest(BaseModel):
    """A race to start: each lane is a run's settings. Their seed is one, drawn where none is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    lanes: list[dict[str, Any]] = Field(min_length=FEWEST, max_length=MOST)


class RaceStore:
    """Which runs belong together, in `folder`/races.sqlite3. Raises StoreError."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        path = folder / "races.sqlite3"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._connection.executescript("PRAGMA journal_mode = WAL;" + _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"the races in {path} cannot be opened ({error}): name another folder with --data"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def add(self, race_id: str, run_ids: list[str]) -> None:
        created_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        rows = [(race_id, created_at, lane, run_id) for lane, run_id in enumerate(run_ids)]
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO lanes VALUES (?, ?, ?, ?)", rows)
            self._connection.execute("COMMIT")

    def race(self, race_id: str) -> tuple[str, list[str]] | None:
        """When it was started, and its runs in their order; None: there is none."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT created_at, run_id FROM lanes WHERE race_id = ? ORDER BY lane", (race_id,)
            ).fetchall()
        return (rows[0][0], [run_id for _, run_id in rows]) if rows else None

    def newest(self, limit: int) -> list[str]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT race_id FROM lanes WHERE lane = 0 ORDER BY rowid DESC LIMIT ?", (limit,)
            ).fetchall()
        return [race_id for (race_id,) in rows]


def races_router(races: RaceStore, store: RunStore, worker: Worker) -> APIRouter:
    router = APIRouter()

    def found(race_id: str) -> dict[str, Any]:
        """A race whose deleted runs are null."""
        race = races.race(race_id)
        if race is None:
            raise ApiError(404, "not_found", f"there is no race {shown(race_id)}", "race_id")
        created_at, run_ids = race
        rows = [store.run(run_id) for run_id in run_ids]
        lanes = [None if row is None else run_json(row) for row in rows]
        return {"race_id": race_id, "created_at": created_at, "lanes": lanes}

    @router.post("/api/races", status_code=201)
    async def start(request: Request) -> dict[str, Any]:
        """Start the runs together. All of them begin, or none."""
        asked = parse_body(RaceRequest, await read_body(request, _MAX_BODY))
        begun = await _begin_all(worker, asked.prompt, _lane_settings(asked))
        race_id = f"race-{new_run_id()}"
        await run_in_threadpool(races.add, race_id, begun)
        return {"race_id": race_id, "runs": begun}

    @router.get("/api/races")
    def listing() -> dict[str, Any]:
        """The newest first; those whose runs were all deleted are left out."""
        listed = [found(race_id) for race_id in races.newest(_LISTED)]
        return {"races": [race for race in listed if any(race["lanes"])]}

    @router.get("/api/races/{race_id}")
    def race(race_id: str) -> dict[str, Any]:
        return found(race_id)

    @router.post("/api/races/{race_id}/stop", status_code=204)
    def stop(race_id: str) -> None:
        """End the runs that still go on."""
        for lane in found(race_id)["lanes"]:
            if lane is not None and lane["state"] not in ("finished", "interrupted"):
                worker.post(Control(lane["run_id"], "stop", refuse=_ignore))

    return router


def _lane_settings(asked: RaceRequest) -> list[Settings]:
    """Each lane's, on one seed. Raises ApiError that names the lane."""
    if not asked.prompt.strip():
        raise ApiError(422, "bad_value", "prompt is empty: type one first", "prompt")
    if len(asked.prompt) > MAX_PROMPT_CHARS:
        message = f"prompt has {len(asked.prompt)} characters, the limit is {MAX_PROMPT_CHARS}: shorten it"
        raise ApiError(422, "prompt_too_long", message, "prompt")
    lanes = []
    for index, values in enumerate(asked.lanes):
        try:
            lanes.append(Settings.model_validate(values))
        except ValidationError as error:
            field, message = explain(error)
            raise ApiError(
                422, "bad_value", f"lane {index + 1}: {message}", f"lanes[{index}].{field}"
            ) from None
    seeds = {lane.seed for lane in lanes}
    if len(seeds) > 1:
        raise ApiError(
            422, "bad_value", "lanes have different seeds: give all the same one, or none", "lanes"
        )
    (seed,) = seeds
    seed = secrets.randbelow(2**32) if seed is None else seed
    return [lane.model_copy(update={"seed": seed}) for lane in lanes]


async def _begin_all(worker: Worker, prompt: str, lanes: list[Settings]) -> list[str]:
    """Ask for every lane's run in one go; their ids. When one is refused, the others stop: ApiError."""
    loop = asyncio.get_running_loop()
    begun: dict[str, asyncio.Future[ErrorFrame | None]] = {}
    for settings in lanes:
        run_id, answer = new_run_id(), loop.create_future()
        begun[run_id] = answer

        def opened(_: str, answer: asyncio.Future[ErrorFrame | None] = answer) -> None:
            if not answer.done():
                answer.set_result(None)

        def refused(frame: ErrorFrame, answer: asyncio.Future[ErrorFrame | None] = answer) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(frame))

        worker.post(Begin(run_id, prompt, settings, None, False, opened, refused))
    answers = await asyncio.gather(*begun.values())
    refusals = [(lane, frame) for lane, frame in enumerate(answers, 1) if frame is not None]
    if refusals:
        for run_id, frame in zip(begun, answers, strict=True):
            if frame is None:
                worker.post(Control(run_id, "stop", refuse=_ignore))
        lane, frame = refusals[0]
        status = _HTTP_STATUS.get(frame.code, 422)
        raise ApiError(status, frame.code, f"lane {lane}: {frame.message}", f"lanes[{lane - 1}]")
    return list(begun)


def _ignore(_: ErrorFrame) -> None:
    """A run that ended by itself meanwhile needs no stopping."""
