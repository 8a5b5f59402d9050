"""Folders that are whole or absent, also when a build is killed or two processes want the same one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddtree.storage import build_once, cache_home

BUILDER = """
import sys, time
from pathlib import Path
from ddtree.storage import build_once

def build(folder):
    (folder / "first").write_text("half")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "second").write_text(sys.argv[3])

folder = build_once(Path(sys.argv[1]), build, lambda what, fraction: print(what, flush=True))
print((folder / "second").read_text(), flush=True)
"""


def start(folder: Path, seconds: float, text: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", BUILDER, str(folder), str(seconds), text]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def silent(what: str, fraction: float | None) -> None:
    pass


def test_a_killed_build_leaves_nothing_half_made(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "one"
    process = start(folder, 60, "never")
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    assert not folder.exists()
    begin = time.monotonic()
    build_once(folder, lambda made: (made / "second").write_text("whole") and None, silent)
    assert time.monotonic() - begin < 5  # the dead process holds no lock
    assert [file.name for file in folder.iterdir()] == ["second"]
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["one"]


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    first = start(folder, 1.5, "the first's")
    assert first.stdout is not None
    assert first.stdout.readline() == "building\n"
    second = start(folder, 0, "the second's")
    out, _ = second.communicate(timeout=20)
    assert out == "waiting for another process that makes the same files\nthe first's\n"
    assert first.communicate(timeout=20)[0] == "the first's\n"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        build_once(tmp_path / "one", build, silent)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    build_once(tmp_path / "one", lambda made: None, silent)

    def never(folder: Path) -> None:
        raise AssertionError(folder)

    assert build_once(tmp_path / "one", never, silent) == tmp_path / "one"


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "ddtree-scope"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_home() == Path("/home/someone/.cache/ddtree-scope")
