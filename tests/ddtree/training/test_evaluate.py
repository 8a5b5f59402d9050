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


@pytest.fixture(scope="module")
def drafter(target: Target) -> DFlashDrafter:
    config = dataclasses.replace(
        CONFIG, vocab_size=23, direct_path=True, slots="heads", slot_intermediate_size=80
    )
    return DFlashDrafter("tiny", config, random_model(config), target)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replay_accepts_what_live_decoding_accepted(
    target: Target, drafter: DFlashDrafter, shape: Shape, temperature: float
) -> None:
    settings = Settings(
        method=shape.method,
        drafter="dflash",
        budget=shape.budget,
        temperature=temperature,
        max_new_tokens=150,
        seed=4,
    )
    decoder = ddtree.TreeDecoder(target, drafter, settings)
    accepted = []
    run = decoder.start("5 9 14 7 3")
    list(decoder.prefill(run))
    while run.finish_reason is None:
        before = run.accepted_drafts
        decoder.step(run)
        accepted.append(run.accepted_drafts - before)
    features = run.cache.features
    assert features is not None and sum(accepted) > 0
    tally = replay(drafter, run.token_ids, 5, features, [shape])[shape]
    expected = Tally()
    for count in accepted:
        expected.add(count)
    assert tally == expected


def test_shapes_side_by_side_are_what_each_is_alone(target: Target, drafter: DFlashDrafter) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 8, (50,), generator=generator).tolist()
    features = torch.randn(50, 192, generator=generator)
    together = replay(drafter, tokens, 4, features, SHAPES)
    for shape in SHAPES:
        assert replay(drafter, tokens, 4, features, [shape])[shape] == together[shape]


def test_a_walk_follows_the_text_within_the_budget() -> None:
    """root -> 10 -> 20 -> 30, root -> 11 -> 20."""
    tree = DraftTree.from_parents([-1, 0, 1, 2, 0, 4], [10, 20, 30, 11, 20])
    assert walk(tree, 5, [10, 20, 30, 40]) == 3
    assert walk(tree, 2, [10, 20, 30, 40]) == 2
    assert walk(tree, 5, [11, 20, 30]) == 2
    assert walk(tree, 3, [11, 20, 30]) == 0
    assert walk(tree, 5, [10, 21]) == 1
    assert walk(tree, 5, [10]) == 1
    assert walk(tree, 5, []) == 0


def test_a_tally_counts_how_deep_steps_came() -> None:
    tally = Tally()
    for accepted in (0, 2, 3, 1):
        tally.add(accepted)
    assert (tally.steps, tally.accepted_drafts, tally.reached) == (4, 6, [3, 2, 1])
    assert tally.per_step == 1.5
    assert Tally().per_step == 0.0
