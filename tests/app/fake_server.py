"""Servers over real sockets with a made-up engine, in this process; and a client that speaks the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from fake_engine import FakeEngine
from websockets.sync.client import connect

from app.main import Server
from app.settings import ServerSettings

LIMIT_S = 20.0


class FakeServer:
    """`app.main.Server` on a thread, with a made-up engine."""

    def __init__(self, engine: FakeEngine, **settings: Any) -> None:
        self.server = Server(ServerSettings.model_validate({"port": 0, **settings}), engine.load)
        self.url = self.server.url.split("?")[0].rstrip("/")
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> Self:
        self.thread.start()  # the socket listens already: what comes early waits
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.should_exit = True
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), "the server does not stop"

    def client(self, **options: Any) -> Client:
        return Client(self.url, **options)


class Client:
    """A websocket of /ws/decode; `frames` is all that came."""

    def __init__(self, url: str, **options: Any) -> None:
        self._stack = ExitStack()
        address = url.replace("http", "ws", 1) + "/ws/decode"
        self._socket = self._stack.enter_context(
            connect(address, max_size=None, close_timeout=0.5, **options)
        )
        self.frames: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def send(self, type: str, **content: Any) -> None:
        self._socket.send(json.dumps({"type": type, **content}))

    def send_raw(self, message: str | bytes) -> None:
        self._socket.send(message)

    def next(self, timeout: float = LIMIT_S) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self._socket.recv(timeout))
        self.frames.append(frame)
        return frame

    def until(self, type: str, **content: Any) -> dict[str, Any]:
        """The next frame of this type and content; what comes before is kept in `frames`."""
        while True:
            frame = self.next()
            if frame["type"] == type and content.items() <= frame.items():
                return frame
            assert frame["type"] != "error", frame

    def until_any(self, type: str) -> dict[str, Any]:
        """The next frame of this type, whatever comes before it."""
        while (frame := self.next())["type"] != type:
            pass
        return frame

    def ready(self) -> Self:
        self.until("hello", model="ready")
        return self

    def start(self, prompt: str = "p", **content: Any) -> str:
        self.send("start", prompt=prompt, **content)
        return str(self.until("started")["run_id"])

    def of(self, type: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == type]

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        try:
            self.next(seconds)
        except TimeoutError:
            return True
        return False


Serve = Callable[..., FakeServer]
