"""`ddtree train`: the flags, the signals that stop it, and its progress on standard error."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import Any, get_args

from app.exits import DONE, INTERRUPTED
from ddtree.drafters.dflash_config import Slots
from ddtree.training.settings import TrainSettings

_EVERY_S = 10.0
"""Progress of one kind is shown as often as this."""

STAGES = ("synthesise", "features", "train", "export", "evaluate")

_HELP: dict[str, tuple[str, str]] = {
    # setting: (group, help)
    "model": ("texts", "target: a Hugging Face id or folder, or a GGUF file"),
    "seed": ("texts", "of every draw: texts, order, anchors, first weights"),
    "texts": ("texts", "a JSON Lines file (perhaps .gz) of prompt, temperature, response_ids: used as it is"),
    "prompts": ("texts", "a file of your own prompts, one a line; they are answered first"),
    "answers": ("texts", "texts to synthesise"),
    "max_tokens": ("texts", "longest document, prompt included"),
    "max_documents": ("texts", "how many of the texts are used; 0: all"),
    "held_out": ("texts", "documents that are kept for the evaluation"),
    "taps": ("drafter", "target layers whose output is read, as 1,8,15; default: five, the last among them"),
    "layers": ("drafter", "layers"),
    "block_size": ("drafter", "the root and the drafted positions"),
    "slots": ("drafter", "heads: each position is made of the root's state; masks: the z-lab layout"),
    "slot_intermediate_size": ("drafter", "width of the heads' gated unit"),
    "direct_path": ("drafter", "last context token and root straight into every slot"),
    "draft_vocabulary": ("drafter", "tokens it can draft, the most frequent ones; 0: all of the target's"),
    "soft": ("loss", "share of the target's distribution in the loss; the rest is its token"),
    "gamma": ("loss", "position j weighs exp(-(j - 1) / gamma)"),
    "vocabulary": ("loss", "tokens that a step's softmax runs over"),
    "frequent": ("loss", "of them, those that are frequent in the texts"),
    "learning_rate": ("optimiser", "its highest"),
    "weight_decay": ("optimiser", "AdamW's"),
    "warm_up": ("optimiser", "steps over which the learning rate rises"),
    "decay": ("optimiser", "last share of the run, over which it falls to nothing"),
    "documents": ("optimiser", "documents a step"),
    "anchors": ("optimiser", "tokens of a document that play the root"),
}


def add_train_parser(commands: Any) -> argparse.ArgumentParser:
    """The subcommand's parser; the caller says what it runs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train a drafter for a model, on text of its own making",
        description="Train a DFlash drafter for a target, in stages: synthesise texts with the target, cache "
        "its hidden states, train, export, evaluate. Ctrl-C or SIGTERM stops at a checkpoint; the same "
        "command goes on from there. The result lies in WORK/drafter: use it with --draft-model.",
        epilog="A run is resumed with the settings it was begun with; --minutes, --steps and how it works "
        "may change. Cached hidden states take taps x width x 2 bytes a token.",
    )
    parser.add_argument("--work", required=True, metavar="DIR", help="where everything of this run is kept")
    groups: dict[str, Any] = {}
    for setting in dataclasses.fields(TrainSettings):
        group, text = _HELP[setting.name]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        _add_setting(groups[group], setting, text)
    _work_flags(parser.add_argument_group("this call"))
    return parser


def _add_setting(group: Any, setting: dataclasses.Field[Any], text: str) -> None:
    flag, default = "--" + setting.name.replace("_", "-"), setting.default
    shown = text if default in (None, ()) else f"{text} (default: {default})"
    if setting.name == "taps":
        group.add_argument(flag, type=_taps, default=default, metavar="LAYERS", help=shown)
    elif setting.name == "slots":
        group.add_argument(flag, choices=get_args(Slots), default=default, help=shown)
    elif isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
    else:
        kind = str if default is None else type(default)
        group.add_argument(flag, type=kind, default=default, metavar=_METAVARS.get(kind, "X"), help=shown)


_METAVARS: dict[Any, str] = {str: "NAME", int: "N", float: "X"}


def _taps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers; write them as 1,8,15") from None


def _work_flags(group: Any) -> None:
    group.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="time for the train stage, all calls together, pauses not counted (default: 30 without --steps)",
    )
    group.add_argument("--steps", type=int, metavar="N", help="end the train stage after N steps")
    group.add_argument(
        "--until", choices=STAGES, default="evaluate", help="last stage (default: %(default)s)"
    )
    group.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=3.0,
        metavar="M",
        help="time between checkpoints (default: %(default)s)",
    )
    group.add_argument(
        "--batch-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="padded tokens in a pass of the features stage (default: %(default)s)",
    )
    group.add_argument(
        "--rows",
        type=int,
        default=64,
        metavar="N",
        help="texts generated side by side (default: %(default)s)",
    )
    group.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    group.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32 (default: %(default)s)")
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")


def train(arguments: argparse.Namespace) -> int:
    """Runs the stages and returns the exit code. Raises ValueError or OSError for what cannot be done."""
    import torch

    from ddtree.training.pipeline import Limits, Pipeline

    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"--threads {arguments.threads}: use 1 or more")
        torch.set_num_threads(arguments.threads)
    for name in ("minutes", "steps", "checkpoint_minutes", "batch_tokens", "rows"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} {value}: use a number above 0")
    given = vars(arguments)
    settings = TrainSettings(**{one.name: given[one.name] for one in dataclasses.fields(TrainSettings)})
    limits = Limits(**{one.name: given[one.name] for one in dataclasses.fields(Limits)})
    if limits.minutes is None and limits.steps is None:
        limits = dataclasses.replace(limits, minutes=30.0)
    with _StopSignal() as stopping:
        done = Pipeline(Path(arguments.work), settings, limits, _Progress(), stopping).run()
    if done:
        print(f"ddtree train: done; what came out lies in {arguments.work}", file=sys.stderr)
        return DONE
    print("ddtree train: stopped; the same command goes on from here", file=sys.stderr)
    return INTERRUPTED


class _StopSignal:
    """True from the first Ctrl-C or SIGTERM on; a second one ends the process as usual."""

    def __init__(self) -> None:
        self.given = False

    def __enter__(self) -> _StopSignal:
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        del frame
        self.given = True
        signal.signal(number, self._before[signal.Signals(number)])
        print("ddtree train: stopping at a checkpoint", file=sys.stderr, flush=True)

    def __call__(self) -> bool:
        return self.given


class _Progress:
    """A line on standard error: at once where there is no share to tell, else every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0
        self._began = time.monotonic()

    def __call__(self, what: str, share: float | None) -> None:
        now = time.monotonic()
        if share is not None and now < self._next and share < 1:
            return
        self._next = now + _EVERY_S
        shown = what if share is None else f"{what}, {share:.1%}"
        print(f"[{now - self._began:6.0f} s] {shown}", file=sys.stderr, flush=True)
