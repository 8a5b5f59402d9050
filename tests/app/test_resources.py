"""The page's files over HTTP: found, compressed, cached for ever or asked about, typed as browsers want."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from fake_server import Serve
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.resources import PlotlyScript, RevalidatedFiles, resource_dir


def test_plotly_is_served_compressed_and_cached_for_ever(serve: Serve) -> None:
    server = serve()
    url = PlotlyScript().url
    assert "plotly-" in url and url in httpx.get(server.url).text
    compressed = httpx.get(server.url + url)
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert compressed.headers["content-type"].startswith("text/javascript")
    assert int(compressed.headers["content-length"]) < 1_700_000
    plain = httpx.get(server.url + url, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == compressed.content  # httpx has unpacked it
    etag = {"If-None-Match": plain.headers["etag"]}
    assert httpx.get(server.url + url, headers=etag).status_code == 304


def test_our_own_files_are_asked_about_and_an_edit_shows_up(tmp_path: Path) -> None:
    app = FastAPI()
    app.mount("/static", RevalidatedFiles(directory=tmp_path))
    (tmp_path / "main.js").write_text("let a = 1\n")
    client = TestClient(app)
    first = client.get("/static/main.js")
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-type"].startswith("text/javascript")
    known = {"If-None-Match": first.headers["etag"]}
    assert client.get("/static/main.js", headers=known).status_code == 304
    (tmp_path / "main.js").write_text("let a = 2\n")
    os.utime(tmp_path / "main.js", (1, 1))
    edited = client.get("/static/main.js", headers=known)
    assert (edited.status_code, edited.text) == (200, "let a = 2\n")


def test_nothing_outside_the_folder_is_served(serve: Serve) -> None:
    server = serve()
    for path in ("/static/../app/main.py", "/static/%2e%2e/app/main.py", "/static//etc/passwd", "/static/"):
        assert httpx.get(server.url + path).status_code == 404


def test_a_broken_installation_is_named() -> None:
    assert resource_dir("templates").is_dir() and resource_dir("static").is_dir()
    with pytest.raises(FileNotFoundError, match="no folder 'nothing'"):
        resource_dir("nothing")
