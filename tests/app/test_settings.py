"""The server's settings: what is refused, where runs are kept, when a token is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.settings import ServerSettings, default_data_dir, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "given",
    [
        {"port": -1},
        {"port": 65536},
        {"host": ""},
        {"token": "short"},
        {"token": "with spaces in it, and long"},
        {"threads": 0},
        {"max_upload_bytes": 0},
        {"pause_limit_s": 0},
        {"colour": "red"},
    ],
)
def test_a_bad_value_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ServerSettings.model_validate(given)
    assert refused.value.errors()[0]["loc"] == tuple(given)


def test_runs_are_kept_where_the_system_keeps_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_data_dir() == Path("/somewhere/ddtree")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_data_dir() == Path("/home/me/.local/share/ddtree")
    assert ServerSettings().data == default_data_dir()
