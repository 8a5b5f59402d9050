"""Every setting of a training run, as it is logged and as a resumed run finds it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.drafters.dflash_config import Slots
from ddtree.training.files import write_atomically


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What decides the result. The defaults are the shipped drafter's but where its card says otherwise."""

    model: str | None = None  # the target; None: the default one
    seed: int = 0
    # texts
    texts: str | None = None  # a file that stands in for the synthesise stage
    prompts: str | None = None  # a file of the user's own prompts, one a line
    answers: int = 3000  # texts to synthesise
    max_tokens: int = 512  # of a document, its prompt included
    max_documents: int = 0  # of those, how many are used; 0: all
    held_out: int = 96  # documents that training never sees: the evaluate stage's
    # the drafter
    taps: tuple[int, ...] = ()  # target layers; (): five, spread evenly, the last layer among them
    layers: int = 1
    block_size: int = 8
    slots: Slots = "heads"
    slot_intermediate_size: int = 768  # of the heads' gated unit
    direct_path: bool = True
    draft_vocabulary: int = 0  # tokens it can draft, the frequent ones; 0: all of the target's
    # the loss
    soft: float = 0.7  # share of the target's distribution, the rest is its token
    gamma: float = 4.0  # position j weighs exp(-(j - 1) / gamma)
    vocabulary: int = 4096  # tokens of a step's softmax
    frequent: int = 3072  # of them, those that are frequent in the texts
    # the optimiser
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warm_up: int = 40  # steps
    decay: float = 0.4  # the last share of the run, over which the learning rate falls to nothing
    documents: int = 4  # a step
    anchors: int = 96  # a document

    def check(self) -> None:
        """Raises ValueError that names the setting, its value and what it may be."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        for name in ("soft", "decay"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; it must be 0 to 1")
        if self.frequent > self.vocabulary:
            raise ValueError(
                f"frequent is {self.frequent}, more than the {self.vocabulary} of vocabulary; lower it"
            )


_LEAST: dict[str, float] = {
    "answers": 1,
    "max_tokens": 8,
    "max_documents": 0,
    "held_out": 1,
    "layers": 1,
    "block_size": 2,
    "slot_intermediate_size": 1,
    "draft_vocabulary": 0,
    "gamma": 0.1,
    "vocabulary": 2,
    "frequent": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "warm_up": 1,
    "documents": 1,
    "anchors": 1,
}


def keep_settings(file: Path, settings: TrainSettings) -> None:
    """Writes the settings, or compares them with those that the folder was begun with. Raises ValueError that
    names those that differ: a run is resumed as it was begun."""
    given = json.loads(json.dumps(dataclasses.asdict(settings)))
    if not file.is_file():
        write_atomically(file, (json.dumps(given, indent=2) + "\n").encode())
        return
    kept: dict[str, Any] = json.loads(file.read_text())
    differing = [
        f"{name} was {kept.get(name)!r} and is {given[name]!r}"
        for name in given
        if kept.get(name) != given[name]
    ]
    if differing:
        raise ValueError(
            f"{file.parent} was begun with other settings: {'; '.join(differing)}; use those, or another "
            "--work"
        )
