"""The service: the application, and the process around it."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
import socket, uvicorn

from app.resources import PlotlyScript, RevalidatedFiles, resource_dir, templates, version
from app.security import Gate
from app.settings import ServerSettings
from ddtree.settings import Settings


def create_app(settings: ServerSettings) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None)
    plotly = PlotlyScript()
    page = templates()

    @app.get("/", response_class=HTMLResponse)
    def index(request: Request) -> Response:
        context = {
            "version": version(),
            "plotly_url": plotly.url,
            "settings_schema": Settings.model_json_schema(),
            "settings_defaults": Settings().model_dump(mode="json"),
        }
        return page.TemplateResponse(request, "index.html", context)

    app.add_api_route(plotly.url, plotly.response, include_in_schema=False)
    app.mount("/static", RevalidatedFiles(directory=resource_dir("static")))
    app.add_middleware(Gate, settings=settings)
    return app


def serve(settings):
    uvicorn.run(create_app(settings), host=settings.host, port=settings.port)
