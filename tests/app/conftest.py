"""Fixtures of the service's tests: servers with a made-up engine, stopped when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import FakeServer, Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(engine, **settings)` starts a server that the test's end stops."""
    with ExitStack() as stack:

        def start(engine: FakeEngine | None = None, **settings: Any) -> FakeServer:
            return stack.enter_context(FakeServer(engine or FakeEngine(), **{"data": tmp_path, **settings}))

        yield start
