"""The chi-square of pooled counts, against scipy and against what is known of multinomial draws."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from ddtree.goodness import chi_square_tail, fit


@pytest.mark.parametrize(
    ("chi_square", "degrees"), [(0.0, 1), (3.841, 1), (18.3, 10), (124.3, 100), (60, 9), (800, 700)]
)
def test_the_tail_is_scipys(chi_square: float, degrees: int) -> None:
    assert chi_square_tail(chi_square, degrees) == pytest.approx(stats.chi2.sf(chi_square, degrees), rel=1e-6)


def test_known_quantiles() -> None:
    assert chi_square_tail(3.841458820694124, 1) == pytest.approx(0.05, abs=1e-12)
    assert chi_square_tail(29.58829844507442, 10) == pytest.approx(0.001, abs=1e-12)


def test_rare_tokens_are_pooled_to_an_expected_count_of_five() -> None:
    probs = torch.tensor([0.5, 0.3, 0.1, 0.04, 0.03, 0.03, 0], dtype=torch.float64)
    found = fit(torch.tensor([52, 28, 11, 3, 2, 4, 0]), probs)
    assert [(c.token_id, c.tokens) for c in found.categories] == [(0, 1), (1, 1), (2, 1), (None, 3)]
    assert [c.observed for c in found.categories] == [52, 28, 11, 9]
    assert [c.expected for c in found.categories] == pytest.approx([50, 30, 10, 10])
    reference = stats.chisquare([52, 28, 11, 9], [50, 30, 10, 10])
    assert found.chi_square == pytest.approx(reference.statistic)
    assert found.p_value == pytest.approx(reference.pvalue)
    assert found.total_variation == pytest.approx(0.5 * (2 + 2 + 1 + 1) / 100)


def test_a_pool_that_is_too_rare_joins_the_rarest_category() -> None:
    probs = torch.tensor([0.6, 0.38, 0.02], dtype=torch.float64)
    found = fit(torch.tensor([58, 40, 2]), probs)
    assert [(c.token_id, c.tokens, c.observed) for c in found.categories] == [(0, 1, 58), (None, 2, 42)]
    assert all(c.expected >= 5 for c in found.categories)


def test_a_token_without_probability_is_impossible() -> None:
    found = fit(torch.tensor([50, 49, 1]), torch.tensor([0.5, 0.5, 0], dtype=torch.float64))
    assert (found.impossible, found.p_value) == (1, 0.0)


def test_one_category_tells_nothing_apart() -> None:
    found = fit(torch.tensor([100, 0]), torch.tensor([1, 0], dtype=torch.float64))
    assert (found.degrees, found.p_value, found.total_variation) == (0, None, 0)


def test_the_expected_variation_is_the_mean_of_right_draws() -> None:
    probs = torch.softmax(torch.linspace(0, 3, 24, dtype=torch.float64), 0)
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(300):
        tokens = torch.multinomial(probs, 2000, replacement=True, generator=generator)
        found.append(fit(torch.bincount(tokens, minlength=24), probs))
    mean = sum(f.total_variation for f in found) / len(found)
    assert found[0].expected_variation == pytest.approx(mean, rel=0.03)
    # Of 300 right samples 15 are expected below 0.05; more than 30 have a chance of 2e-4 (binomial).
    assert sum(f.p_value < 0.05 for f in found if f.p_value is not None) <= 30
