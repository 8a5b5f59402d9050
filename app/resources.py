"""Where the page's files lie, and how they are served.

In a checkout `templates/` and `static/` stand beside `app/`; in a wheel they lie inside it. Plotly's script
comes from the installed plotly package: its URL carries the package's version, so a
browser may keep it for ever. Our own files are revalidated by ETag on every load, so an edit shows up.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import mimetypes
import os
import zlib
from pathlib import Path

from fastapi.templating import Jinja2Templates
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_APP = Path(__file__).parent

# Some systems' registries say text/plain for scripts, which a browser told `nosniff` refuses to run.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/css", ".css")


def resource_dir(name: str) -> Path:
    """The folder `templates` or `static`. Raises FileNotFoundError naming the places it looked in."""
    places = [_APP / name, _APP.parent / name]
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"no folder {name!r} at {' or '.join(map(str, places))}: the installation is broken"
    )


def version() -> str:
    """The version of this installation."""
    return importlib.metadata.version("ddtree-scope")


def templates() -> Jinja2Templates:
    return Jinja2Templates(directory=resource_dir("templates"))


class RevalidatedFiles(StaticFiles):
    """Static files that a browser may keep but must ask about: 304 by ETag while they are unchanged."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        return response


class PlotlyScript:
    """plotly.min.js out of the pip package, compressed once, on the first request."""

    def __init__(self) -> None:
        package = importlib.util.find_spec("plotly")
        if package is None or package.origin is None:
            raise FileNotFoundError("the package plotly is not installed: pip install plotly")
        self._path = Path(package.origin).parent / "package_data" / "plotly.min.js"
        self.url = f"/static/vendor/plotly-{importlib.metadata.version('plotly')}.min.js"

    @functools.cached_property
    def _raw(self) -> bytes:
        return self._path.read_bytes()

    @functools.cached_property
    def _gzipped(self) -> bytes:
        compressor = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        return compressor.compress(self._raw) + compressor.flush()

    @functools.cached_property
    def _etag(self) -> str:
        return f'"{hashlib.sha256(self._raw).hexdigest()[:32]}"'

    def text(self) -> str:
        """The script, for a page that carries it inside."""
        return self._raw.decode("utf-8")

    def response(self, request: Request) -> Response:
        """The script, gzip'd where the client takes that; blocks while it is read for the first time."""
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "ETag": self._etag,
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("if-none-match") == self._etag:
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._raw, media_type="text/javascript", headers=headers)
        return Response(
            self._gzipped, media_type="text/javascript", headers={**headers, "Content-Encoding": "gzip"}
        )
