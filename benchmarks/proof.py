"""The long proofs, one after the other, with progress; the last output is kept in benchmarks/proof.txt.

tests      every test marked `proof`: thousands of executor cases, the soak of the page, long runs
exactness  greedy float32 decoding against transformers' generate on all prompts
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from pathlib import Path

from common import OWN_PROMPTS, commit, machine

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with a field `prompt`")
    parser.add_argument("--every", type=int, default=1, help="use each N-th prompt")
    arguments = parser.parse_args()
    prompts = ["--prompts", str(arguments.prompts), "--every", str(arguments.every)]
    proofs = {
        "tests": [sys.executable, "-m", "pytest", "-m", "proof", "-v", "--timeout=3600"],
        "exactness": [sys.executable, str(HERE / "exactness.py"), *prompts],
    }
    kept = [f"{datetime.date.today()}, commit {commit()}, {machine()}"]
    failed = 0
    for name, command in proofs.items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        code, lines = run(command)
        failed |= code
        minutes = (time.monotonic() - began) / 60
        kept += ["", f"== {name}: {'failed' if code else 'passed'} in {minutes:.1f} min", *lines[-40:]]
    (HERE / "proof.txt").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return 1 if failed else 0


def run(command: list[str]) -> tuple[int, list[str]]:
    """Run it in the project, its output shown as it comes; (exit code, lines)."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return process.returncode, lines


if __name__ == "__main__":
    sys.exit(main())
