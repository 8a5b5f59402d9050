"""What the benchmarks share: prompts, ratios with an interval, a server and a browser."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.bench import prompts
from app.bench.machine import cpu_name
from app.bench.prompts import OWN_PROMPTS


def prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """--prompts FILE (JSON lines with a `prompt`), --every N: each N-th of them."""
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with a field `prompt`")
    parser.add_argument("--every", type=int, default=1, help="use each N-th prompt, from the first on")


def read_prompts(path: Path, every: int = 1) -> list[str]:
    return [prompt.text for prompt in prompts.read_prompts(path)[::every]]


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """(geometric mean, lower, upper): the 95 % t-interval of paired ratios, on their logarithms; for a
    handful of rounds of one thing, where a bootstrap would be too narrow."""
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1) / len(logs))
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * spread
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def machine() -> str:
    """One line that says where a figure was taken."""
    import torch

    return f"{cpu_name()}, torch {torch.__version__} on {torch.get_num_threads()} threads"


@contextmanager
def served(*flags: str) -> Iterator[str]:
    """The URL of a server of its own, in a process of its own, with an empty store."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--data", data, *flags]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split("listens on ")[1].strip().rstrip("/")
        finally:
            server.terminate()
            server.wait()


def chromium() -> str:
    """The browser's program: CHROMIUM=, else the first on the PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        sys.exit("this benchmark needs Chromium: install it, or name it with CHROMIUM=")
    return program


def commit() -> str:
    """The commit that is measured, with a + when the tree has changes."""
    here = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"
