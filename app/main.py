"""The service: the application, and the process around it.

The page is rendered from templates/index.html with this context:

- `version`: of this program;
- `plotly_url`: where plotly.min.js is served from (a versioned URL that may be cached for ever);
- `settings_schema`: the JSON Schema of a run's settings, with each one's description and limits;
- `settings_defaults`: their defaults, null where the server chooses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from app.analysis import analysis_router
from app.api import answer_error, api_router
from app.checks import checks_router
from app.engine import LoadEngine, load_engine
from app.errors import ApiError, shown
from app.exports import exports_router
from app.forks import forks_router
from app.hub import Hub
from app.inspecting import inspecting_router
from app.lanes import lanes_router
from app.live import live_router
from app.metrics import Metrics
from app.races import RaceStore, races_router
from app.recorder import Publication, Recorder
from app.resources import PlotlyScript, RevalidatedFiles, resource_dir, templates, version
from app.run_list import run_list_router
from app.runs import RunStore, StoreError
from app.security import Gate
from app.settings import MAX_WS_MESSAGE_BYTES, ServerSettings
from app.tools import tools_router
from app.worker import Control, Worker
from ddtree.settings import Settings
from ddtree.trace_file import json_path

log = logging.getLogger("ddtree.app")

_DRAIN_S = 3
"""How long connections may take to end when the server is stopped."""


class ServeError(ValueError):
    """The server cannot start as asked; the message is one sentence with the remedy."""


def create_app(settings: ServerSettings, load: LoadEngine = load_engine) -> FastAPI:
    """The application; its threads live as long. Raises StoreError, FileNotFoundError, ValueError."""
    service = Service(settings, load)
    app = FastAPI(
        title="DDTree Scope",
        version=version(),
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=service.lifespan,
    )
    app.state.service = service
    app.include_router(run_list_router(service.store, service.hub))
    app.include_router(forks_router(service.store))
    app.include_router(exports_router(service.store))
    app.include_router(api_router(settings, service.store, service.hub, service.worker, service.metrics))
    app.include_router(analysis_router(service.store))
    app.include_router(lanes_router(service.store))
    app.include_router(races_router(service.races, service.store, service.worker))
    app.include_router(tools_router())
    app.include_router(inspecting_router())
    app.include_router(checks_router(service.store, service.worker))
    app.include_router(live_router(service.hub, service.store, service.worker))
    _add_page(app)
    app.add_exception_handler(ApiError, answer_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_middleware(Gate, settings=settings)
    return app


class Service:
    """What lives as long as the server: store, worker, recorder, and what viewers read from."""

    def __init__(self, settings: ServerSettings, load: LoadEngine) -> None:
        self.hub = Hub()
        self.metrics = Metrics()
        self.store = RunStore(settings.data)
        self.races = RaceStore(settings.data)
        self.recorder = Recorder(self.store, self.metrics, self._publish, self._give_up)
        self.worker = Worker(settings, load, self.recorder.put, self._model_changed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics.gauge("num_requests_running", "Runs that decode.", lambda: self.worker.decoding)
        self.metrics.gauge(
            "num_requests_waiting", "Runs that wait for their turn.", lambda: self.worker.waiting
        )
        self.metrics.gauge("num_requests_paused", "Runs that are paused.", lambda: self.worker.paused)
        self.metrics.gauge("num_viewers", "Open websockets.", lambda: len(self.hub.viewers))

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.recorder.start()
        self.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.worker.close()
        self.recorder.close()
        self.store.close()
        self.races.close()

    def _publish(self, publications: list[Publication]) -> None:
        self._on_loop(self.hub.deliver, publications)

    def _model_changed(self) -> None:
        self._on_loop(self.hub.model_changed)

    def _on_loop(self, call: Any, *arguments: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _give_up(self, run_id: str) -> None:
        self.worker.post(Control(run_id, "stop", refuse=lambda _: None))


def _add_page(app: FastAPI) -> None:
    plotly, page = PlotlyScript(), templates()

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        context = {
            "version": version(),
            "plotly_url": plotly.url,
            "settings_schema": Settings.model_json_schema(),
            "settings_defaults": Settings().model_dump(mode="json"),
        }
        answer = page.TemplateResponse(request, "index.html", context)
        answer.headers["Cache-Control"] = "no-cache"
        return answer

    app.add_api_route(plotly.url, plotly.response, include_in_schema=False)
    app.mount("/static", RevalidatedFiles(directory=resource_dir("static")))


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = json_path(first["loc"][1:])
    message = f"{field} cannot be {shown(first.get('input'))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return JSONResponse({"code": "bad_value", "message": message, "field": field}, status_code=422)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "bad_request"
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = {"code": code, "message": message, "field": None}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _unforeseen(_: Request, error: Exception) -> JSONResponse:
    """The error itself is raised on and logged."""
    message = f"the server failed: {type(error).__name__}: {error}"
    return JSONResponse({"code": "internal", "message": message, "field": None}, status_code=500)


# ---- the process ----


def serve(settings: ServerSettings) -> int:
    """Serve until interrupted; returns the exit code. Raises ServeError when it cannot start."""
    _log_to_stderr()
    server = Server(settings)
    with suppress(KeyboardInterrupt):  # which uvicorn raises again, once everything is closed
        server.run()
    if server.service.worker.busy:
        # Inside a model call or an import, which the interpreter cannot end cleanly and nobody waits for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


class Server(uvicorn.Server):
    """One server: listens from the start, says where once it answers, and owns the application."""

    def __init__(self, settings: ServerSettings, load: LoadEngine = load_engine) -> None:
        """Raises ServeError."""
        settings = settings.secured()
        self._listener = _listen(settings)
        self.url = _url(settings, self._listener)
        try:
            app = create_app(settings, load)
        except (StoreError, FileNotFoundError) as error:
            self._listener.close()
            raise ServeError(str(error)) from None
        self.service: Service = app.state.service
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="websockets-sansio",
                ws_max_size=MAX_WS_MESSAGE_BYTES,
                ws_ping_interval=20,
                ws_ping_timeout=60,
                ws_per_message_deflate=False,  # it would take time from decoding
                proxy_headers=False,
                server_header=False,
                access_log=False,  # it would write tokens
                log_config=None,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"DDTree Scope {version()} listens on {self.url}", flush=True)


def _listen(settings: ServerSettings) -> socket.socket:
    host = settings.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ServeError(
            f"host {settings.host} is not known here ({error.strerror}): use --host 127.0.0.1"
        ) from None
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): stop what uses it, "
            "or choose another with --port (0: any free one)"
        ) from None
    return listener


def _url(settings: ServerSettings, listener: socket.socket) -> str:
    """Where a browser on this machine finds the page; the token is in it, once."""
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(settings.host, settings.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    query = "" if settings.token is None else f"?token={settings.token}"
    return f"http://{host}:{listener.getsockname()[1]}/{query}"


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name, level in (("ddtree", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
