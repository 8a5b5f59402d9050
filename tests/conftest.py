"""What the tests of every folder share: real servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings
from serving import ServerProcess

# The same examples in every run: a failure is a change's fault, never a draw's.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the default model for the whole session, loaded. Tests that stop it start their own."""
    with ServerProcess(data=tmp_path_factory.mktemp("runs")) as server:
        yield server.wait_ready()
        print(f"---- log of {server.url} ----\n{server.log()}", file=sys.stderr)
