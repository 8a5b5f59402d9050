"""Batched generation against transformers' own, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import BASE, FAMILIES, twins

from ddtree.training.generate import BatchCache, draw, generate

PROMPTS = [[5, 9, 14], [77, 3, 8, 120, 41, 9], [200, 7, 7, 7]]


@pytest.fixture(scope="module")
def model() -> Any:
    return twins("llama", BASE)[1]


@torch.inference_mode()
def alone(model: Any, prompt: list[int], stops: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in stops:
            break
    return ids[len(prompt) :]


def answers(model: Any, stops: list[int], temperatures: list[float], seed: int = 0) -> list[list[int]]:
    made = generate(
        model,
        PROMPTS,
        temperatures,
        top_p=1.0,
        max_new_tokens=20,
        stop_token_ids=stops,
        generator=torch.Generator().manual_seed(seed),
    )
    assert made is not None
    return made


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2: learned positions, no linear layers"])
def test_each_row_is_what_the_model_says_alone(family: str) -> None:
    one = twins(*FAMILIES[family])[1]
    assert answers(one, [], [0.0] * 3) == [alone(one, prompt, [], 20) for prompt in PROMPTS]


def test_finished_rows_are_dropped_and_the_others_go_on(model: Any) -> None:
    """The second row's fourth token stops it: the third moves into its place."""
    stop = alone(model, PROMPTS[1], [], 20)[3]
    expected = [alone(model, prompt, [stop], 20) for prompt in PROMPTS]
    assert len(expected[1]) <= 4 < max(len(answer) for answer in expected)
    assert answers(model, [stop], [0.0] * 3) == expected


def test_warm_rows_repeat_with_their_seed_and_leave_cold_ones_alone(model: Any) -> None:
    first, second, other = (answers(model, [], [1.0, 0.0, 1.0], seed) for seed in (1, 1, 2))
    assert first == second
    assert first[0] != other[0]
    assert first[1] == other[1] == alone(model, PROMPTS[1], [], 20)


def test_it_can_be_stopped(model: Any) -> None:
    stopped = generate(
        model,
        PROMPTS,
        [0.0] * 3,
        top_p=1.0,
        max_new_tokens=5,
        stop_token_ids=[],
        generator=torch.Generator(),
        should_stop=lambda: True,
    )
    assert stopped is None


def test_dropping_moves_rows_to_the_front() -> None:
    cache = BatchCache(1, 4, 5)
    keys = torch.arange(4.0)[:, None, None, None].expand(4, 1, 2, 3)
    cache.layers[0].update(keys, -keys)
    cache.length = 2
    cache.keep(torch.tensor([1, 3]))
    kept, values = cache.layers[0].update(torch.full((2, 1, 1, 3), 9.0), torch.zeros(2, 1, 1, 3))
    assert kept[:, 0, :, 0].tolist() == [[1, 1, 9], [3, 3, 9]]
    assert values[:, 0, :, 0].tolist() == [[-1, -1, 0], [-3, -3, 0]]


def test_top_p_keeps_the_shortest_prefix_that_reaches_it() -> None:
    """Probabilities .5, .3, .2: of 300 draws at top-p .7 none is the last token and, at odds of 5 to 3, 150
    to 225 are the first (99.99 % of such samples)."""
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(300, 3)
    drawn = draw(logits, torch.ones(300), 0.7, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=3).tolist()
    assert counts[0] == 0
    assert 150 < counts[1] < 225
    assert draw(logits[:2], torch.tensor([0.0, 1.0]), 0.4, torch.Generator()).tolist() == [1, 1]
