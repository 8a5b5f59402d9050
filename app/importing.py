"""Traces into the store, each checked in a process of its own.

A trace of 64 MiB takes seconds and a gigabyte to read. In this process that would hold the interpreter, and
with it every viewer and the decoding thread; so a child reads, checks and stores it, in one transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from starlette.concurrency import run_in_threadpool

from app.errors import ApiError

LIMIT_S = 300.0
"""An import that takes longer is given up."""

_REFUSED = 3  # exit code; 1 is the interpreter's own, for an error that nobody caught
_ROOT = Path(__file__).parent.parent


class Importer:
    """Takes uploads, one at a time, so that memory is bounded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = asyncio.Lock()

    async def take(self, parts: AsyncIterator[bytes]) -> dict[str, Any]:
        """Returns run_id and steps of the new run (of the last of several), and how many there were. Raises
        ApiError, and nothing is written then."""
        with tempfile.TemporaryFile() as upload:
            async for part in parts:
                upload.write(part)
            upload.seek(0)
            async with self._turn:
                return await run_in_threadpool(self._import, upload)

    def _import(self, upload: IO[bytes]) -> dict[str, Any]:
        path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            done = subprocess.run(  # -P: nothing that lies in the working directory is imported
                [sys.executable, "-P", "-m", "app.importing", str(self._folder)],
                stdin=upload,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
        except subprocess.TimeoutExpired:
            raise ApiError(422, "bad_trace", f"reading the trace took more than {LIMIT_S} s") from None
        if done.returncode not in (0, _REFUSED):
            lines = done.stderr.decode(errors="replace").splitlines() or [f"exit code {done.returncode}"]
            raise ApiError(500, "internal", f"the trace was not imported: {lines[-1]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        if done.returncode == _REFUSED:
            raise ApiError(422, "bad_trace", answer["message"], answer["path"])
        return answer


def main() -> int:
    """The child: a trace, or a list of them, on standard input, the store's folder as argument, an answer as
    JSON: the last run, and how many there were."""
    from app.runs import RunStore
    from ddtree.trace_file import TraceError, load_traces

    try:
        traces = load_traces(sys.stdin.buffer.read())
    except TraceError as error:
        print(json.dumps({"message": str(error), "path": error.path or None}))
        return _REFUSED
    store = RunStore(Path(sys.argv[1]), serving=False)
    run_ids = store.import_traces(traces)
    print(json.dumps({"run_id": run_ids[-1], "steps": len(traces[-1].steps), "runs": len(run_ids)}))
    store.close()
    return 0


if __name__ == "__main__":
    os.nice(10)  # whatever decodes comes first
    sys.exit(main())
