"""The settings of a server: one object, built at the start and passed down."""

from __future__ import annotations

import ipaddress
import os
import secrets
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

MAX_PROMPT_CHARS = 262_144
"""Most characters of a prompt (and of a system text); the context of the models is the tighter limit."""

MAX_WS_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest websocket message taken from a client: a prompt and a system text in any script, with room."""

MIB = 1024 * 1024


def default_data_dir() -> Path:
    """Where runs are kept: $XDG_DATA_HOME/ddtree, or ~/.local/share/ddtree."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "ddtree"


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine can reach a server bound to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class ServerSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; not loopback: needs a token"
    )
    port: int = Field(
        8000, ge=0, le=65535, description="port to listen on; 0: any free one, printed at the start"
    )
    token: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{16,}$",
        description="secret that every request must carry; null: drawn where one is needed",
    )
    model: str | None = Field(
        None, description="target: Hugging Face id, folder or GGUF file; null: the default"
    )
    draft_model: str | None = Field(
        None, description="drafter checkpoint; 'none': load none; null: the default"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N")
    device_map: str | None = Field(None, description="auto: the target's layers over all devices; null: one")
    dtype: str = Field("auto", description="auto, bfloat16, float16, float32")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads that decode; null: chosen")
    data: Path = Field(default_factory=default_data_dir, description="where runs are kept")
    max_upload_bytes: int = Field(64 * MIB, ge=1024, description="largest trace that can be imported")
    max_decoding: int = Field(4, ge=1, le=64, description="runs that decode at once, step by step in turn")
    max_waiting: int = Field(32, ge=0, le=1024, description="runs that may wait or be paused besides those")
    pause_limit_s: float = Field(600.0, gt=0, description="a run paused for longer ends as cancelled")

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    def secured(self) -> Self:
        """These settings with a token drawn where one is needed and none is given."""
        if self.loopback or self.token is not None:
            return self
        return self.model_copy(update={"token": secrets.token_urlsafe(24)})
