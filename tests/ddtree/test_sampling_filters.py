"""Temperature, top-k and top-p: to the digit, and equal to transformers' warpers where theirs are defined."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_reference import DTYPES, sampled_row
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ddtree import _kernels
from ddtree.observe import observe_rows

INF = math.inf


def distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """The whole distribution that the walk samples from, float64 [V]: every token asked for as a child."""
    views = observe_rows(
        logits[None],
        [0],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        children=[range(len(logits))],
        draft_logits=None,
        draft_rows=[-1],
        draft_temperature=1.0,
    )
    return torch.tensor(views[0].child_probs, dtype=torch.float64)


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """What transformers samples from, float64 [V]."""
    scores = logits[None].float()
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores.double(), -1)[0]


def test_top_p_keeps_the_shortest_prefix() -> None:  # case 13
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    torch.testing.assert_close(
        distribution(logits, top_p=0.5), torch.tensor([4 / 7, 3 / 7, 0, 0]).double(), rtol=1e-6, atol=0
    )
    assert distribution(logits, top_p=0.399).tolist() == [1, 0, 0, 0]
    assert (distribution(logits, top_p=0.95) > 0).all()


@pytest.mark.parametrize("size", [4, 32, 33, 1024, 3000])
def test_top_k_keeps_all_that_equal_the_kth(size: int) -> None:  # case 13
    assert distribution(torch.zeros(size), top_k=2).tolist() == [1 / size] * size
    logits = torch.zeros(size)
    logits[[0, size // 2]] = 1
    for top_k in (1, 2):
        assert distribution(logits, top_k=top_k)[[0, size // 2]].tolist() == [0.5, 0.5]
    assert (distribution(logits, top_k=3) > 0).all()


@pytest.mark.parametrize("size", [4, 1000, 1024, 3000])
def test_ties_at_the_top_p_cut_go_to_lower_ids(size: int) -> None:
    for kept in {1, 2, size // 2, size - 1}:
        probs = distribution(torch.zeros(size), top_p=kept / size)
        assert (probs > 0).tolist() == [token < kept for token in range(size)]
    logits = torch.zeros(size)
    logits[1] = math.log(2)  # mass 2 before size - 1 of mass 1
    probs = distribution(logits, top_p=3 / (size + 1))
    assert (probs > 0).nonzero().flatten().tolist() == [0, 1]


def test_top_p_is_taken_of_what_top_k_leaves() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert (distribution(logits, top_k=2, top_p=0.57) > 0).tolist() == [True, False, False, False]
    assert (distribution(logits, top_p=0.57) > 0).tolist() == [True, True, False, False]


def test_minus_zero_equals_zero() -> None:
    logits = torch.tensor([0.0, -0.0, -1.0, -0.0])
    assert distribution(logits, top_k=1).tolist() == [1 / 3, 1 / 3, 0, 1 / 3]


def test_impossible_tokens_stay_impossible() -> None:
    logits = torch.tensor([-INF, 1.0, -INF, 1.0, -INF])
    for rule in ({"top_k": 4}, {"top_k": 1}, {"top_p": 0.99}, {"temperature": 5.0}):
        assert distribution(logits, **rule).tolist() == [0, 0.5, 0, 0.5, 0]


@pytest.mark.parametrize("top_p", [1e-9, 1 - 1e-9, math.nextafter(1, 0)])
def test_extreme_top_p(top_p: float) -> None:
    logits = torch.tensor([3.0, 1.0, 0.0, 2.0])
    probs = distribution(logits, top_p=top_p)
    assert (probs > 0).sum() == (1 if top_p < 0.5 else 4)


def prefix_margin(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> float:
    """How far from a tie the top-p cut is: of its mass, and between the tokens beside it."""
    kept = torch.softmax(warped_scores(logits, temperature, top_k), -1)
    ordered = kept.sort(descending=True).values
    sums = ordered.cumsum(0)
    cut = int((sums < top_p).sum())
    neighbours = ordered[cut] - ordered[cut + 1] if cut + 1 < len(ordered) else ordered[cut]
    return min(float((sums - top_p).abs().min()), float(neighbours))


def warped_scores(logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
    scaled = logits.double() / temperature
    if top_k:
        least = scaled.topk(min(top_k, len(logits))).values[-1]
        scaled[scaled < least] = -INF
    return scaled


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([2, 5, 31, 64, 500, 1024, 1500, 2049]),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([0.1, 1.0, 4.0, 20.0]),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 10, 50, 700, 3000]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.9, 0.5, 0.1]),
)
def test_equals_transformers_warpers(
    seed: int, size: int, dtype: torch.dtype, spread: float, temperature: float, top_k: int, top_p: float
) -> None:
    logits = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)
    if top_p < 1:
        assume(prefix_margin(logits, temperature, top_k, top_p) > 3e-6)
    ours = distribution(logits, temperature, top_k, top_p)
    theirs = warped(logits, temperature, top_k, top_p)
    assert (ours[theirs == 0] == 0).all()
    assert (ours[theirs > 2e-38] > 0).all()  # below that, float32 may underflow
    # the quotient logit / temperature is float32: its rounding is the exponent's absolute error
    largest = float(logits.double().abs().max()) / temperature
    torch.testing.assert_close(ours, theirs, rtol=2e-5 + 2 * largest * 2**-24, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), size=st.integers(2, 80))
def test_equals_a_sorted_float64_prefix_with_ties(data: st.DataObject, size: int) -> None:
    grid = data.draw(st.lists(st.integers(-8, 8), min_size=size, max_size=size))
    rule = {
        "temperature": data.draw(st.sampled_from([0.5, 1.0, 2.0])),
        "top_k": data.draw(st.integers(0, size)),
        "top_p": data.draw(st.floats(0.01, 0.999)),
    }
    expected, margin = sampled_row([float(n) for n in grid], **rule)
    assume(margin > 1e-6)
    ours = distribution(torch.tensor(grid, dtype=torch.float32), **rule)
    assert [p > 0 for p in ours.tolist()] == [p > 0 for p in expected]
    assert ours.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "rule", [{"top_k": 40}, {"top_p": 0.9}, {"temperature": 0.3, "top_k": 9999, "top_p": 0.5}]
)
def test_every_instruction_set_gives_the_same_bits(rule: dict[str, float]) -> None:
    best = _kernels.instruction_set()
    for seed in range(10):
        logits = torch.randn(3000 + seed, generator=torch.Generator().manual_seed(seed)) * 3
        found = []
        for name in ("portable", "avx2", "avx512"):
            if _kernels.use_instruction_set(name):
                found.append(distribution(logits, **rule).tolist())
        _kernels.use_instruction_set(best)
        assert all(probs == found[0] for probs in found)


def test_exp_is_accurate_to_a_unit_in_the_last_place() -> None:
    """Masses relative to the likeliest token's, over the whole range of exp, against float64."""
    logits = -torch.arange(0, 88, 88 / 40_000)
    probs = distribution(logits)
    exact = torch.exp(logits.double())
    ratio = probs / probs[0] / exact
    representable = logits > -87.33
    assert (ratio[representable] - 1).abs().max() < 1.3e-7
    assert (probs[~representable] == 0).all()
