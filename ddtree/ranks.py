"""How a target is to be placed: on one device, its layers on several, or cut over the processes that torchrun
has started. Checked before anything heavy is imported or loaded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

_NEEDED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that hold a part of the target each. Rank 0 decodes, the others follow it."""

    rank: int
    size: int
    local_size: int  # of them on this machine

    @property
    def leads(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True, slots=True)
class Placement:
    device: str = "auto"
    device_map: str | None = None
    ranks: Ranks | None = None


def read_ranks(environ: Mapping[str, str] = os.environ) -> Ranks | None:
    """What torchrun says in the environment; None for one process. Raises ValueError, one sentence."""
    if "WORLD_SIZE" not in environ:
        return None
    size = _count(environ, "WORLD_SIZE", 1)
    if size == 1:
        return None
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} not set: start the processes with torchrun, or "
            "unset WORLD_SIZE"
        )
    rank = _count(environ, "RANK", 0)
    if rank >= size:
        raise ValueError(f"RANK is {rank}, but WORLD_SIZE is {size}: ranks are 0 to {size - 1}")
    return Ranks(rank, size, _count(environ, "LOCAL_WORLD_SIZE", 1))


def _count(environ: Mapping[str, str], name: str, least: int) -> int:
    value = environ[name]
    if not (value.isascii() and value.isdigit() and int(value) >= least):
        raise ValueError(
            f"{name} is {value!r}; torchrun sets it to a number of at least {least}: start with torchrun, or "
            "unset WORLD_SIZE"
        )
    return int(value)


def place(device: str, device_map: str | None, ranks: Ranks | None) -> Placement:
    """The placement that was asked for. Raises ValueError, one sentence, where its parts exclude each other
    or something it needs is not installed."""
    if device_map not in (None, "auto"):
        raise ValueError(f"device map {device_map!r} is not known; the only one is auto")
    if device_map is not None:
        if ranks is not None:
            raise ValueError(
                f"device map auto and torchrun's {ranks.size} processes are two ways to spread a target: "
                "leave one out"
            )
        if device != "auto":
            raise ValueError(f"device map auto chooses the devices itself: leave out device {device!r}")
        if importlib.util.find_spec("accelerate") is None:
            raise ValueError("device map auto needs accelerate: pip install 'ddtree-scope[multi]'")
    if ranks is not None and device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device {device!r} is one device, but torchrun has started {ranks.size} processes, each with "
            "its own: leave it out"
        )
    return Placement(device, device_map, ranks)
