"""Tiny runs of static steps: a random llama and a random DFlash drafter over the vocabulary of letters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from devices import needs_cuda
from fakes import word_tokenizer
from tiny_drafters import CONFIG, random_model
from tiny_models import BASE, ours, twins

from ddtree.decoder import TreeDecoder
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.graphs import CudaCapture
from ddtree.loading import make_target
from ddtree.settings import Settings
from ddtree.static_pipeline import StaticMode
from ddtree.target import Target
from ddtree.trace import Step, Trace

LETTERS = 12
SMALL = dataclasses.replace(CONFIG, vocab_size=LETTERS)
UNPADDED, PADDED = StaticMode(padded=False), StaticMode()
CAPTURED = StaticMode(new_capture=CudaCapture)
MODES = {"unpadded": UNPADDED, "padded": PADDED, "captured": CAPTURED}
uncaptured = pytest.mark.parametrize("mode", [UNPADDED, PADDED], ids=["unpadded", "padded"])
in_every_mode = pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, id=name, marks=[needs_cuda] * (name == "captured")) for name, mode in MODES.items()],
)
PROMPT = "abcdefg"


def tiny_pair(kind: str = "llama", device: str = "cpu", **options: Any) -> tuple[Target, DFlashDrafter]:
    """So few letters that the target often agrees with a random drafter's trees."""
    options = {**BASE, "vocab_size": LETTERS, **options}
    _, reference = twins(kind, options)
    target = make_target(ours(kind, options, reference).to(device), word_tokenizer(LETTERS), kind)
    target.stop_token_ids = ()
    return target, DFlashDrafter("tiny", SMALL, random_model(SMALL), target)


def decode(
    pair: tuple[Target, DFlashDrafter],
    mode: StaticMode | None,
    settings: Settings,
    changes: Sequence[dict[str, Any]] = (),
    prompt: str = PROMPT,
) -> Trace:
    """A run, of the decode loop where no mode is given; after step i the settings are updated with
    changes[i]."""
    if mode is CAPTURED and pair[0].device.type == "cpu":
        pytest.skip("graphs are CUDA's")
    decoder = TreeDecoder(*pair, settings, static=mode)
    if mode is None:
        decoder._static = None  # the loop, on every device
    for i, _ in enumerate(decoder.decode(prompt)):
        if i < len(changes):
            decoder.settings = decoder.settings.updated(**changes[i])
    return decoder.trace()


def tokens(trace: Trace) -> list[int]:
    return [token for step in trace.steps if step.committed for token in step.committed.token_ids]


def depths(trace: Trace) -> set[int]:
    return {step.accept.accept_token_num for step in trace.steps if step.accept}


def of_step(step: Step) -> dict[str, Any]:
    """What must not depend on how the step was run."""
    assert step.tree is not None and step.target is not None
    return {
        "root": step.root,
        "tree": [step.tree.token_ids, step.tree.parents, step.tree.depths, step.tree.row, step.tree.ranks],
        "retrieve": step.retrieve,
        "sampling": step.sampling,
        "verdicts": [(d.node, d.verdict) for d in step.decisions or ()],
        "path": step.accept and (step.accept.accept_index, step.accept.bonus_token_id),
        "bonus": step.accept and (step.accept.bonus_source, step.accept.bonus_draft_rank),
        "rows": [(row.node, row.token_ids, row.draft_token_ids) for row in step.target.rows],
        "committed": step.committed,
    }
