"""Replay counts what live decoding accepts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tiny_drafters import CONFIG, random_model
from tiny_models import BASE, twins

import ddtree
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.settings import Settings
from ddtree.target import Target
from ddtree.training.evaluate import Shape, Tally, replay, walk
from ddtree.training.reader import Reader
from ddtree.tree import DraftTree

SHAPES = [Shape("chain", 7), Shape("ddtree", 7), Shape("ddtree", 15)]


@pytest.fixture(scope="module")
def target() -> Target:
    """23 tokens and no stop among them: a random drafter hits now and then."""
    made = twins("llama", {**BASE, "vocab_size": 23})[0]
    made.tokenizer = PlainTokenizer()
    made.stop_token_ids = ()
    return made


class PlainTokenizer:
    """Prompts are written as token ids."""

    eos_token_id = 2
    chat_template = None
    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=[int(part) for part in text.split()])

    def __len__(self) -> int:
        return 23

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return f" {token_id}"

    def decode(self, ids: list[int]) -> str:
        return "".join(f" {token_id}" for token_id in ids)


VARIANTS = {
    "z-lab": dataclasses.replace(CONFIG, vocab_size=23),
    "heads": dataclasses.replace(
        CONFIG, vocab_size=23, direct_path=True, slots="heads", slot_intermediate_size=80
    ),
}


def reader_of(target: Target, variant: str, token_ids: torch.Tensor | None = None) -> Reader:
    embedding = target.model.get_input_embeddings().weight
    head = twins("llama", {**BASE, "vocab_size": 23})[1].get_output_embeddings().weight.detach()
    rows = head if token_ids is None else head[token_ids]
    return Reader(random_model(VARIANTS[variant]), embedding, rows, token_ids)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replay_accepts_what_live_decoding_accepted(
    target: Target, variant: str, shape: Shape, temperature: float
) -> None:
    """Step by step, with a vocabulary of the drafter's own in one of the variants."""
    token_ids = torch.arange(1, 22) if variant == "heads" else None
    reader = reader_of(target, variant, token_ids)
    head = torch.nn.Linear(64, len(reader.head), bias=False)
    head.load_state_dict({"weight": reader.head})
    drafter = DFlashDrafter(
        "tiny", VARIANTS[variant], random_model(VARIANTS[variant]), target, head, token_ids
    )
    settings = Settings(
        method=shape.method,
        drafter="dflash",
        budget=shape.budget,
        temperature=temperature,
        max_new_tokens=150,
        seed=4,
    )
    decoder = ddtree.TreeDecoder(target, drafter, settings)
    run = decoder.start("5 9 14 7 3")
    list(decoder.prefill(run))
    expected = Tally()
    while run.finish_reason is None:
        before = run.accepted_drafts
        decoder.step(run)
        expected.add(run.accepted_drafts - before)
    features = run.cache.features
    assert features is not None and expected.accepted_drafts > 0
    tally = replay(reader, run.token_ids, 5, features[: len(run.token_ids)], [shape])[shape]
    assert tally == expected


def test_shapes_side_by_side_are_what_each_is_alone(target: Target) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 8, (50,), generator=generator).tolist()
    features = torch.randn(50, 192, generator=generator)
    reader = reader_of(target, "heads")
    together = replay(reader, tokens, 4, features, SHAPES)
    for shape in SHAPES:
        assert replay(reader, tokens, 4, features, [shape])[shape] == together[shape]


def test_a_walk_follows_the_text() -> None:
    """root -> 10 -> 20 -> 30, root -> 11 -> 20."""
    tree = DraftTree.from_parents([-1, 0, 1, 2, 0, 4], [10, 20, 30, 11, 20])
    assert walk(tree, [10, 20, 30, 40]) == 3
    assert walk(tree, [11, 20, 30]) == 2
    assert walk(tree, [12, 20]) == 0
    assert walk(tree, [10, 21]) == 1
    assert walk(tree, [10]) == 1
    assert walk(tree, []) == 0


def test_a_tally_counts_how_deep_steps_came() -> None:
    tally = Tally()
    for accepted in (0, 2, 3, 1):
        tally.add(accepted)
    assert (tally.steps, tally.accepted_drafts, tally.reached) == (4, 6, [3, 2, 1])
    assert tally.per_step == 1.5
    assert Tally().per_step == 0.0
