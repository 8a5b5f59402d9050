"""`ddtree report`: its flags and what it prints. Light: the page is put together only when asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from app.exits import DONE


def add_report_parser(commands: Any) -> argparse.ArgumentParser:
    report: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a run as one HTML file that opens offline",
        description="Write a run as one HTML file with the page's own tree, walk, arrays and charts. It "
        "needs neither a server nor a network.",
    )
    report.add_argument("run", metavar="RUN", help="a trace file, or the id of a stored run")
    report.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    report.add_argument(
        "--data", metavar="DIR", help="where runs are kept (default: the user's data directory)"
    )
    return report


def write_report(arguments: argparse.Namespace) -> int:
    """Returns the exit code. Raises ValueError with a sentence."""
    from app.report import find_run, report

    trace, run_id = find_run(arguments.run, arguments.data)
    page = report(trace, run_id).encode()
    try:
        Path(arguments.output).write_bytes(page)
    except OSError as error:
        raise ValueError(f"--output {arguments.output}: {error.strerror}") from None
    print(f"{arguments.output}: {len(trace.steps)} steps of run {run_id}, {len(page) / 2**20:.1f} MiB")
    return DONE
