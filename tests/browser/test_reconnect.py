"""The connection breaks, or the server goes and comes back: the page says so and continues where it was."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage
from serving import ServerProcess


class Line:
    """A line to a server that can be cut: a TCP relay on a port of its own."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._cut = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        self._cut = True
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def mend(self) -> None:
        self._cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_a_cut_connection_is_said_and_continued(open_page: OpenPage, model_server: ServerProcess) -> None:
    with Line(model_server.url) as line:
        scope = open_page(line.url)
        scope.allowed += ["WebSocket connection", "net::ERR"]
        scope.ready()
        scope.run("Tell me what a lighthouse is for.", max_new_tokens=60, pace=10)
        scope.wait_step(3)
        line.cut()
        expect(scope.handle("connection")).to_have_attribute("data-state", "closed")
        expect(scope.handle("connection")).to_contain_text("reconnecting")
        expect(scope.handle("state")).to_contain_text("the run goes on")
        expect(scope.handle("stop")).to_be_disabled()
        missed = scope.store("store.run.newest")
        scope.page.wait_for_timeout(600)
        line.mend()
        expect(scope.handle("connection")).to_have_attribute("data-state", "open")
        expect(scope.handle("connection")).to_have_text("connected")
        scope.wait_step(missed + 4)
        scope.finished()
        newest = scope.store("store.run.newest")
        scope.shows(newest)
        assert scope.store("store.run.ready") == newest + 1 == scope.store("store.run.summary.steps")
        scope.assert_silent()
        scope.complaints.clear()


def test_a_server_that_comes_back_shows_what_there_was(
    open_page: OpenPage, recorded: Path, tmp_path: Path
) -> None:
    with ReplayedServer(recorded, tmp_path, steps=500, seconds=0.05) as url:
        scope = open_page(url)
        scope.allowed += ["WebSocket connection", "net::ERR"]
        scope.ready()
        scope.run("Before the stop")
        scope.wait_step(5)
    expect(scope.handle("connection")).to_have_attribute("data-state", "closed")
    seen = scope.store("store.run.newest")
    with ReplayedServer(recorded, tmp_path, steps=500, seconds=0.05, port=urlsplit(url).port):
        expect(scope.handle("connection")).to_have_attribute("data-state", "open")
        scope.finished()
        assert scope.store("store.run.ready") >= seen + 1
        expect(scope.handle("state")).to_contain_text("stopped")
        scope.ready()
        scope.run("After the stop")
        scope.wait_step(1)
        scope.handle("stop").click()
        scope.finished()


def test_a_page_that_cannot_keep_up_misses_nothing(
    open_page: OpenPage, recorded: Path, tmp_path: Path
) -> None:
    """While it is busy, the server lets go of steps that it would have been sent; it fetches them."""
    with ReplayedServer(recorded, tmp_path, steps=1500, seconds=0.001) as url:
        scope = open_page(url)
        scope.ready()
        scope.run("Faster than the page")
        scope.page.evaluate("() => { const end = Date.now() + 4000; while (Date.now() < end); }")
        scope.until("store.run.state === 'finished' && store.run.ready === 1500", patience_s=60)
        scope.shows(1499)
        assert scope.store("store.run.sums.steps") == 1500
