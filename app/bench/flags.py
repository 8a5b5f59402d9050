"""The flags of `ddtree bench`, and its help."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from app.bench.lanes import DEFAULT_ACCEPTANCE_LANES, DEFAULT_LANES
from app.bench.prompts import OWN_PROMPTS

DESCRIPTION = """\
Decode prompts in several lanes and print how fast each is and what it accepts. A lane is a way of decoding:

  ddtree, chain, autoregressive    this decoder; settings follow a colon:
                                   ddtree:drafter=hybrid,budget=15   chain:budget=7   ddtree:top-p=0.9
  generate                         transformers' generate on an untouched model (sdpa, default cache)
  prompt-lookup                    the same with prompt lookup; prompt-lookup:tokens=10
  dflash-generate                  the same with transformers' own DFlash speculation and our drafter's
                                   weights, or others: dflash-generate:draft-model=FOLDER

The lanes decode each prompt in turn, warm, on the same threads, and which goes first rotates; ratios are to
the autoregressive lane on the same prompt in the same round, with a 95 % interval by bootstrap over prompts
and repeats. With --acceptance-only nothing is timed and everything is as fast as it can be.
"""

EPILOG = """\
The folder --out gets plan.json, records.jsonl (a line for each run, as it happens), results.json and
report.html, which opens without a network. The same command goes on where it was stopped: Ctrl-C ends after
the prompt in work, a second one at once. Exit codes: 0 done, 1 a run ended in an error, 2 the command could
not be carried out as given, 130 interrupted.
"""


def add_bench_parser(commands: Any) -> argparse.ArgumentParser:
    """The subcommand; the caller adds the flags of models and machine, and what it runs."""
    bench: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure speed and acceptance over many prompts",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("--out", metavar="DIR", required=True, type=Path, help="where everything is written")
    bench.add_argument(
        "--lane",
        metavar="LANE",
        dest="lanes",
        action="append",
        help=f"may be repeated (default: {' '.join(DEFAULT_LANES)}; with --acceptance-only: "
        f"{' '.join(DEFAULT_ACCEPTANCE_LANES)})",
    )
    bench.add_argument(
        "--temperatures", metavar="T", type=float, nargs="+", default=[0.0], help="(default: 0)"
    )
    group = bench.add_argument_group("prompts")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        default=OWN_PROMPTS,
        help="JSON lines with `prompt` or `turns` (the first is taken), and perhaps `id` and `category` "
        "(default: twelve of our own)",
    )
    group.add_argument("--categories", metavar="NAME", nargs="+", help="only prompts of these")
    group.add_argument(
        "--sample", metavar="N", type=int, help="a fixed sample of N prompts, spread over the categories"
    )
    group.add_argument(
        "--prompt-limit",
        metavar="N",
        type=int,
        default=512,
        help="longer ones are cut in their text, to N tokens with the template (default: 512)",
    )
    group = bench.add_argument_group("measuring")
    group.add_argument(
        "--new-tokens", metavar="N", type=int, default=128, help="most tokens to generate (default: 128)"
    )
    group.add_argument(
        "--repeats", metavar="N", type=int, help="rounds over the prompts (default: 3; acceptance: 1)"
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of the first run (default: 0)")
    group.add_argument("--acceptance-only", action="store_true", help="time nothing, only count")
    group.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="processes that share the work of --acceptance-only"
    )
    group.add_argument("--traces", metavar="DIR", type=Path, help="write the trace of every run there")
    return bench
