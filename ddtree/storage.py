"""The cache directory, and folders in it that are either whole or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, float | None], None]


def cache_home() -> Path:
    """XDG_CACHE_HOME/ddtree-scope, ~/.cache/ddtree-scope without it. Not created here."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "ddtree-scope"


def build_once(folder: Path, build: Callable[[Path], None], progress: Progress) -> Path:
    """Returns `folder`, made by `build(an empty folder)` if it is not there.

    It appears whole, by a rename: a build that fails or is killed leaves nothing at `folder`, and what is
    left beside it goes with the next build. Of two processes one builds, the other waits and finds it made.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that makes the same files", None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            build(unfinished)
            _sync(unfinished)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return folder


def _sync(folder: Path) -> None:
    """Brings the files to disk before the rename makes them count."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
