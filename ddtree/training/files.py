"""Files that are either whole or as they were."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(file: Path, data: bytes) -> None:
    """Replaces `file` by a rename, after the new bytes are on disk: a kill leaves the old one or the new."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    with unfinished.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)
