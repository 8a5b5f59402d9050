"""What a command does in the processes of torchrun that are not the first: load a part of the target and
follow."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable

from app.exits import DONE, FAILED, MISUSED
from ddtree.ranks import place, read_ranks


def check_placement(arguments: argparse.Namespace) -> None:
    """Raises ValueError, one sentence, where the flags or torchrun's environment cannot be honoured."""
    place(arguments.device, arguments.device_map, read_ranks())


def following(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """`command` in the first process, or in the only one; every other process follows that one to its end."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            check_placement(arguments)
            ranks = read_ranks()
        except ValueError as error:
            print(f"ddtree: {error}", file=sys.stderr)
            return MISUSED
        if ranks is None or ranks.leads:
            return command(arguments)
        return _follow(arguments, ranks.rank)

    return run


def alone(name: str, command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """`command`, refused in a process of several."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            ranks = read_ranks()
        except ValueError as error:
            print(f"ddtree: {error}", file=sys.stderr)
            return MISUSED
        if ranks is not None:
            print(f"ddtree: `ddtree {name}` runs in one process: start it without torchrun", file=sys.stderr)
            return MISUSED
        return command(arguments)

    return run


def _follow(arguments: argparse.Namespace, rank: int) -> int:
    import torch

    from ddtree.models import load_target
    from ddtree.parallel import follow

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    try:
        target = load_target(arguments.model, arguments.device, arguments.dtype)
    except (ValueError, OSError) as error:
        print(f"ddtree: rank {rank}: {error}", file=sys.stderr)
        return MISUSED
    # torchrun passes these on to all: rank 0 ends what it is at, and then says so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        follow(target)
    except RuntimeError:
        print(f"ddtree: rank {rank}: rank 0 is gone without a word", file=sys.stderr)
        return FAILED
    return DONE
