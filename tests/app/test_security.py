"""Host, Origin and token, over real sockets and for every way in; the headers of every answer."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import FakeServer, Serve
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.main import create_app
from app.security import hostname
from app.settings import ServerSettings

TOKEN = "t0ken-t0ken-t0ken"


def upgrade_status(server: FakeServer, **headers: str) -> int:
    """101, or the status a websocket is refused with; "Host" and "Origin" as given."""
    origin = headers.pop("Origin", None)
    address = server.url.replace("http", "ws", 1) + "/ws/decode"
    if "Host" in headers:  # the client derives Host from the address: give it that, and connect elsewhere
        host, port = server.url.removeprefix("http://").split(":")
        address = f"ws://{headers.pop('Host')}/ws/decode"
        elsewhere: dict[str, Any] = {"sock": socket.create_connection((host, int(port)))}
    else:
        elsewhere = {}
    try:
        with connect(address, origin=origin, additional_headers=headers, **elsewhere):  # type: ignore[arg-type]
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("LocalHost:8000", "localhost"),
        ("[::1]:8000", "::1"),
        ("[::1]", "::1"),
        ("::1", None),
        ("[::1", None),
        ("[::1]x", None),
        ("", None),
        (":8000", None),
        ("localhost:x", None),
        ("a:b@evil.example", None),
    ],
)
def test_hostname(header: str, name: str | None) -> None:
    assert hostname(header) == name


FOREIGN = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example:{port}",
    "evil-localhost:{port}",
    "192.168.1.5:{port}",
    "0.0.0.0:{port}",
]
FOREIGN_ORIGINS = [
    "http://evil.example",
    "null",
    "https://127.0.0.1:{port}",
    "http://127.0.0.1",
    "http://localhost:{port}",  # the page of another name is another page
    "http://127.0.0.1:1",
    "file://",
]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_refused_everywhere(serve: Serve, host: str) -> None:
    server = serve()
    host = host.format(port=server.url.rsplit(":", 1)[1])
    for method, path in [
        ("GET", "/"),
        ("GET", "/api/runs"),
        ("POST", "/api/traces"),
        ("GET", "/static/x.js"),
    ]:
        answer = httpx.request(method, server.url + path, headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_host")
    assert upgrade_status(server, Host=host) == 403


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_foreign_origin_is_refused_everywhere(serve: Serve, origin: str) -> None:
    server = serve()
    origin = origin.format(port=server.url.rsplit(":", 1)[1])
    for method, path in [("GET", "/api/runs"), ("POST", "/api/traces"), ("DELETE", "/api/runs/x")]:
        answer = httpx.request(method, server.url + path, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
    assert upgrade_status(server, Origin=origin) == 403


def test_our_own_origin_and_none_are_served(serve: Serve) -> None:
    server = serve()
    port = server.url.rsplit(":", 1)[1]
    for host in ("127.0.0.1", "localhost", "[::1]"):
        own = {"Host": f"{host}:{port}", "Origin": f"http://{host}:{port}"}
        assert httpx.get(server.url + "/api/runs", headers=own).status_code == 200
        assert upgrade_status(server, **own) == 101
    assert httpx.get(server.url + "/api/runs").status_code == 200
    assert upgrade_status(server) == 101


def test_a_refused_websocket_is_told_why(serve: Serve) -> None:
    with pytest.raises(InvalidStatus) as refused, serve().client(origin="http://evil.example"):
        pass
    assert b"foreign_origin" in refused.value.response.body


def test_every_answer_carries_the_policy(serve: Serve) -> None:
    server = serve()
    for path in ("/", "/api/health", "/api/nothing", "/static/nothing.js"):
        headers = httpx.get(server.url + path).headers
        policy = headers["content-security-policy"]
        for part in (
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ):
            assert part in policy
        assert "unsafe-eval" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    refused = httpx.get(server.url, headers={"Host": "evil.example"})
    assert "content-security-policy" in refused.headers


# ---- token ----


def test_elsewhere_there_is_no_server_without_a_token(tmp_path: Any) -> None:
    settings = ServerSettings(host="0.0.0.0", data=tmp_path)
    app = create_app(settings, FakeEngine().load)
    with pytest.raises(ValueError, match="a token is needed"):
        app.build_middleware_stack()
    app.state.service.store.close()
    assert len(settings.secured().token or "") >= 32
    assert settings.secured().token != settings.secured().token
    assert ServerSettings(host="127.0.0.1").secured().token is None


def test_the_token_becomes_a_cookie_and_leaves_the_address_bar(serve: Serve) -> None:
    server = serve(token=TOKEN)
    url = server.url + "/"
    assert server.server.url == f"{url}?token={TOKEN}"
    with httpx.Client() as browser:
        moved = browser.get(url + f"?token={TOKEN}&run=7")
        assert (moved.status_code, moved.headers["location"]) == (303, "/?run=7")
        cookie = moved.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
        assert browser.get(url + "api/runs").status_code == 200
        assert browser.post(url + "api/tree", json={}).status_code == 422
        (name,) = browser.cookies
        headers = {"Cookie": f"{name}={browser.cookies[name]}"}
        with server.client(additional_headers=headers) as client:
            assert client.next()["type"] == "hello"
        again = browser.get(url + f"?token={TOKEN}")
        assert again.status_code == 303  # an old link does not stay in the address bar either


def test_without_the_token_there_is_nothing(serve: Serve) -> None:
    server = serve(token=TOKEN)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "ddtree_x=1; other={}"}):
        for path in ("/", "/api/runs", "/static/x.js", "/?token=wrong", "/?token="):
            answer = httpx.get(server.url + path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "no_token")
        assert upgrade_status(server, **headers) == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(server.url + "/api/runs", headers=bearer).status_code == 200
    assert upgrade_status(server, **bearer) == 101


def test_the_redirect_never_leaves_this_server(serve: Serve) -> None:
    server = serve(token=TOKEN)
    for path in ("//evil.example/", "/%2f%2fevil.example", "/\\evil.example"):
        answer = httpx.get(f"{server.url}{path}?token={TOKEN}")
        location = answer.headers.get("location", "/")
        assert location.startswith("/") and not location.startswith(("//", "/\\")), location


def test_a_wildcard_address_takes_addresses_and_its_own_name_only(serve: Serve) -> None:
    server = serve(host="0.0.0.0", token=TOKEN)
    port = server.url.rsplit(":", 1)[1]
    url = f"http://127.0.0.1:{port}/api/runs"
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(url, headers={**bearer, "Host": f"192.168.1.5:{port}"}).status_code == 200
    assert httpx.get(url, headers={**bearer, "Host": f"evil.example:{port}"}).status_code == 403
    assert httpx.get(url).status_code == 401
