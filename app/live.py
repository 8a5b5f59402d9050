"""The websocket /ws/decode: one task reads what a viewer asks, another sends what it watches.

A run belongs to nobody: it goes on when its viewer leaves, and a viewer that comes back watches it again from
where it was. Closing a socket is never an error, whenever it happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from app.errors import explain
from app.forks import fork_of
from app.hub import Hub
from app.protocol import ErrorFrame, ForkPoint, Hello, Start, Update, Watch, client_message
from app.resources import version
from app.runs import RunStore, new_run_id
from app.settings import MAX_PROMPT_CHARS
from app.viewers import Viewer
from app.worker import Begin, Change, Control, Worker
from ddtree.fork import Fork
from ddtree.settings import Settings

log = logging.getLogger("ddtree.app")

SEND_LIMIT_S = 60.0
"""A viewer that takes no byte for so long is let go; it may come back and continue."""

MAX_BACKLOG = 256
"""Commands that may wait for the worker; past them a viewer is told to try again."""


def live_router(hub: Hub, store: RunStore, worker: Worker) -> APIRouter:
    router = APIRouter()

    @router.websocket("/ws/decode")
    async def decode(socket: WebSocket) -> None:
        await socket.accept()
        viewer = Viewer(hub, store, lambda: hello(worker))
        connection = Connection(viewer, worker, store, asyncio.get_running_loop())

        async def send(text: str) -> None:
            await asyncio.wait_for(socket.send_text(text), SEND_LIMIT_S)

        async def read() -> None:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                connection.hear(message.get("text"))

        tasks = {asyncio.create_task(read()), asyncio.create_task(viewer.send_all(send))}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            viewer.close()
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                _log_unless_closed(outcome)

    return router


def _log_unless_closed(outcome: Any) -> None:
    closed = (asyncio.CancelledError, WebSocketDisconnect, TimeoutError, OSError)
    if isinstance(outcome, BaseException) and not isinstance(outcome, closed):
        log.error("a viewer's connection failed", exc_info=outcome)


def hello(worker: Worker) -> str:
    status = worker.status
    loaded = status.description
    frame = Hello(version=version(), model=status.state, message=status.message, progress=status.progress)
    if loaded is not None:
        frame = frame.model_copy(
            update={
                "engine": loaded.engine,
                "target": loaded.target,
                "drafters": loaded.drafters,
                "default_drafter": loaded.default_drafter,
                "has_chat_template": loaded.has_chat_template,
            }
        )
    return frame.model_dump_json()


class Connection:
    """What one viewer asks, turned into commands for the worker. Never waits."""

    def __init__(
        self, viewer: Viewer, worker: Worker, store: RunStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._viewer = viewer
        self._worker = worker
        self._store = store
        self._loop = loop
        self._run_id: str | None = None  # the run that commands mean: the one started or watched last

    def hear(self, text: str | None) -> None:
        """One message; every fault is answered with an `error` frame."""
        if text is None:
            self._refuse("bad_message", "a binary frame is not understood: send JSON as a text frame")
            return
        try:
            message = client_message.validate_json(text)
        except ValidationError as error:
            self._viewer.say(_not_understood(error))
            return
        if isinstance(message, Watch):
            self._run_id = message.run_id
            self._viewer.watch(message.run_id, message.after)
        elif self._worker.backlog >= MAX_BACKLOG:
            self._refuse(
                "queue_full", f"{self._worker.backlog} commands wait for the model already: try again later"
            )
        elif isinstance(message, Start):
            self._start(message)
        elif self._run_id is None:
            self._refuse("no_run", f"there is no run to {message.type}: start or watch one first")
        elif isinstance(message, Update):
            pace = (message.pace,) if "pace" in message.model_fields_set else None
            self._worker.post(Change(self._run_id, message.settings, pace, self._refuse_later))
        else:
            self._worker.post(Control(self._run_id, message.type, self._refuse_later))

    def _start(self, message: Start) -> None:
        status = self._worker.status
        if status.state == "loading":
            self._refuse("not_ready", f"the model is still loading ({status.message}): try again in a moment")
            return
        if status.state == "failed":
            self._refuse("not_ready", f"there is no model to decode with: {status.message}")
            return
        try:
            settings = Settings.model_validate(message.settings)
        except ValidationError as error:
            field, reason = explain(error)
            self._refuse("bad_value", reason, field)
            return
        for field, text in (("prompt", message.prompt), ("system", settings.system or "")):
            if len(text) > MAX_PROMPT_CHARS:
                reason = f"{field} has {len(text)} characters, the limit is {MAX_PROMPT_CHARS}: shorten it"
                self._refuse("prompt_too_long", reason, field)
                return
        before, run_id = self._run_id, new_run_id()
        self._run_id = run_id

        def opened(run_id: str) -> None:
            if self._run_id == run_id:
                self._viewer.watch(run_id, after=-1)

        def refused(frame: ErrorFrame) -> None:
            if self._run_id == run_id:
                self._run_id = before
            self._viewer.say(frame)

        self._worker.post(
            Begin(
                run_id,
                message.prompt,
                settings,
                message.pace,
                message.paused,
                opened,
                self._later(refused),
                self._fork(message.fork),
            )
        )

    def _fork(self, point: ForkPoint | None) -> Callable[[], tuple[str, Fork]] | None:
        """Reads the fork from the store, on the thread that calls it."""
        loaded = self._worker.status.description
        if point is None or loaded is None:
            return None
        return partial(fork_of, self._store, point, loaded.target.name)

    def _refuse(self, code: str, message: str, field: str | None = None) -> None:
        self._viewer.say(ErrorFrame(code=code, message=message, field=field))

    def _refuse_later(self, frame: ErrorFrame) -> None:
        self._later(self._viewer.say)(frame)

    def _later(self, call: Callable[[ErrorFrame], None]) -> Callable[[ErrorFrame], None]:
        """`call`, for other threads to call: it runs on the event loop."""

        def from_any_thread(frame: ErrorFrame) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call, frame)

        return from_any_thread


def _not_understood(error: ValidationError) -> ErrorFrame:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return ErrorFrame(code="bad_message", message=f"the message is not JSON: {first['ctx']['error']}")
    if first["type"] == "union_tag_invalid":
        tag, known = first["ctx"]["tag"], first["ctx"]["expected_tags"]
        return ErrorFrame(
            code="unknown_type", message=f"type {tag!r} is not known; known are {known}", field="type"
        )
    if first["type"] in ("union_tag_not_found", "model_attributes_type", "dict_type"):
        return ErrorFrame(code="bad_message", message='a message is a JSON object with a "type"')
    field, message = explain(error, skip=1)  # the tag is no part of the path
    return ErrorFrame(code="bad_value", message=message, field=field)
