"""A real server in a process of its own, for tests that meet it as its users do: over sockets.

    with ServerProcess(data=tmp_path) as server:
        httpx.get(server.url + "/api/health")

Its log is printed when it does not start, and by pytest when a test fails (it goes to the test's stderr).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent
START_LIMIT_S = 30.0
READY_LIMIT_S = 120.0

_PROGRAM = """
import sys
from app.main import serve
from app.settings import ServerSettings
sys.exit(serve(ServerSettings.model_validate_json(sys.argv[1])))
"""


class ServerProcess:
    """`python` running `app.main.serve` with these ServerSettings, on a free port of 127.0.0.1.

    `url` has no trailing slash. `environment` is added to this process's own.
    """

    def __init__(self, environment: dict[str, str] | None = None, **settings: Any) -> None:
        self.settings = {"port": 0, **settings}
        self._environment = environment or {}
        self._log = tempfile.NamedTemporaryFile("w+", prefix="ddtree-server-", suffix=".log")  # noqa: SIM115
        self.url = ""
        self.started_after_s = 0.0

    def start(self) -> Self:
        """Returns once the server answers; AssertionError with its log if it does not."""
        began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(self.settings, default=str)],
            cwd=ROOT,
            env={**os.environ, **self._environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        while time.monotonic() < began + START_LIMIT_S:
            if found := re.search(r"listens on (http://\S+?)/?(\?\S*)?\n", self.log()):
                self.url = found.group(1)
                self.started_after_s = time.monotonic() - began
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"the server did not start:\n{self.log()}")

    def log(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")

    def wait_ready(self) -> Self:
        """Returns once the model is loaded; AssertionError with the log if it cannot be."""
        limit = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < limit:
            model = self.health()["model"]
            if model["state"] == "ready":
                return self
            if model["state"] == "failed":
                raise AssertionError(f"the model was not loaded: {model['message']}\n{self.log()}")
            time.sleep(0.1)
        raise AssertionError(f"the model is not ready after {READY_LIMIT_S} s:\n{self.log()}")

    def health(self) -> dict[str, Any]:
        return self.get("/api/health")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    @property
    def websocket(self) -> str:
        return self.url.replace("http://", "ws://") + "/ws/decode"

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None:
            print(f"---- log of {self.url} ----\n{self.log()}", file=sys.stderr)
        self._log.close()
