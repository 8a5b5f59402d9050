"""Who may talk to the server: Host, Origin and token are checked before anything else sees a request, and
before a websocket is accepted.

Any web page can open http://127.0.0.1 and ws://127.0.0.1 from a visitor's browser, and a name that its owner
points at 127.0.0.1 makes such a page same-origin. So the hostname in Host must be one of ours, and an Origin,
where a browser sends one, must be the scheme and Host of the request itself. A server that others can reach
also wants its token: from the cookie, from `Authorization: Bearer`, or once from `?token=`, which becomes the
cookie and leaves the address bar by a redirect.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.settings import ServerSettings

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::"})

# Plotly needs no eval, but inserts style elements and attributes, and draws its exports from blobs.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def hostname(host: str) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None if it cannot be one."""
    name, port = host, ""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    elif ":" in host:
        name, _, port = host.partition(":")
    if not name or (port and not (port.isascii() and port.isdigit())):
        return None
    return name.lower()


class Gate:
    """ASGI middleware around the whole application; also writes the security headers of every answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        """Raises ValueError for a server that others can reach and that has no token."""
        if not settings.loopback and settings.token is None:
            raise ValueError(f"bound to {settings.host} a token is needed: use ServerSettings.secured()")
        self._app = app
        self._bound = settings.host.strip("[]").lower()
        # Bound to every address, each of them is the bound one, and so is this machine's name.
        wildcard = self._bound in WILDCARDS
        self._own_names = {socket.gethostname().lower(), socket.getfqdn().lower()} if wildcard else set()
        self._token = settings.token
        if settings.token is not None:
            # Cookies know no ports: servers on one host must not overwrite each other's.
            self._cookie = "ddtree_" + hashlib.sha256(settings.token.encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(send)
        answer = self._refusal(HTTPConnection(scope))
        if answer is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})  # before accept: the server answers 403
        else:
            await answer(scope, receive, send)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """What to answer instead of serving the request; None: serve it."""
        headers = connection.headers
        hosts = headers.getlist("host")
        name = hostname(hosts[0]) if len(hosts) == 1 else None
        if name is None or not self._is_ours(name):
            return _refused(
                "foreign_host",
                f"Host {', '.join(hosts) or '(none)'} is not this server's: open it as 127.0.0.1, localhost "
                f"or under the address it is bound to ({self._bound})",
            )
        scheme = {"ws": "http", "wss": "https"}.get(connection.scope["scheme"], connection.scope["scheme"])
        own = f"{scheme}://{hosts[0].lower()}"
        for origin in headers.getlist("origin"):
            if origin.lower() != own:
                return _refused(
                    "foreign_origin", f"Origin {origin} is not {own}: only this server's own page may ask"
                )
        return None if self._token is None else self._without_token(connection)

    def _is_ours(self, name: str) -> bool:
        if name in LOOPBACK_NAMES or name == self._bound:
            return True
        if not self._own_names:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._own_names
        return True

    def _without_token(self, connection: HTTPConnection) -> Response | None:
        if self._holds(_bearer(connection.headers)) or self._holds(connection.cookies.get(self._cookie)):
            given = connection.query_params.get("token")
            return (
                self._moved(connection) if given is not None and connection.scope["type"] == "http" else None
            )
        if connection.scope["type"] == "http" and self._holds(connection.query_params.get("token")):
            return self._moved(connection)
        return _refused(
            "no_token",
            "this server wants its token: open the URL that it printed when it started",
            HTTPStatus.UNAUTHORIZED,
        )

    def _holds(self, given: str | None) -> bool:
        assert self._token is not None
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _moved(self, connection: HTTPConnection) -> Response:
        """The token becomes a cookie and leaves the address bar."""
        assert self._token is not None
        query = parse_qsl(connection.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + quote(connection.scope["path"].lstrip("/\\"))  # never //host: that is another server
        answer = RedirectResponse(path + ("?" + rest if rest else ""), status_code=HTTPStatus.SEE_OTHER)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        answer.headers["Cache-Control"] = "no-store"
        return answer


def _with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


def _refused(code: str, message: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> Response:
    return JSONResponse({"code": code, "message": message, "field": None}, status_code=status)


def _bearer(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None
