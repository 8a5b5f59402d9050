"""Counts of draws against the distribution they should come from: pooled chi-square and total variation.

A category that is expected less than LEAST_EXPECTED times is pooled with the others of its kind, because
there the chi-square distribution does not hold (Cochran's rule).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LEAST_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class Category:
    """One token, or several that are rare: token_id None."""

    token_id: int | None
    tokens: int
    expected: float  # draws
    observed: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How well `draws` fit their distribution. p_value: how often a right sampler's counts differ by as much
    or more; None where there is one category and nothing to tell apart."""

    draws: int
    categories: list[Category]  # the most expected first, the pooled one last
    chi_square: float
    degrees: int
    p_value: float | None
    total_variation: float  # of the observed shares to the distribution, over the categories
    expected_variation: float  # its mean for a right sampler: the noise of so many draws
    impossible: int  # draws of tokens without probability: none of a right sampler's


def fit(observed: torch.Tensor, probs: torch.Tensor) -> Fit:
    """observed int64 [V]: how often each token was drawn; probs float64 [V]: what it should be."""
    draws = int(observed.sum())
    expected = probs * draws
    impossible = int(observed[probs <= 0].sum())
    single = torch.nonzero(expected >= LEAST_EXPECTED).flatten()
    single = single[torch.argsort(expected[single], descending=True, stable=True)]
    categories = [Category(int(t), 1, float(expected[t]), int(observed[t])) for t in single]
    rest = torch.ones_like(probs, dtype=torch.bool)
    rest[single] = False
    rest &= probs > 0
    if bool(rest.any()):
        pooled = Category(None, int(rest.sum()), float(expected[rest].sum()), int(observed[rest].sum()))
        if pooled.expected < LEAST_EXPECTED and categories:
            last = categories.pop()  # too rare even together: with the rarest of the others
            pooled = Category(
                None,
                pooled.tokens + last.tokens,
                pooled.expected + last.expected,
                pooled.observed + last.observed,
            )
        categories.append(pooled)
    return _compare(draws, categories, impossible)


def _compare(draws: int, categories: list[Category], impossible: int) -> Fit:
    chi_square = sum((c.observed - c.expected) ** 2 / c.expected for c in categories)
    degrees = len(categories) - 1
    p_value = None if degrees < 1 else chi_square_tail(chi_square, degrees)
    shares = [c.expected / draws for c in categories] if draws else []
    return Fit(
        draws,
        categories,
        chi_square,
        degrees,
        0.0 if impossible else p_value,
        0.5 * sum(abs(c.observed - c.expected) for c in categories) / draws if draws else 0.0,
        0.5 * sum(math.sqrt(2 * p * (1 - p) / (math.pi * draws)) for p in shares),
        impossible,
    )


def chi_square_tail(chi_square: float, degrees: int) -> float:
    """P(a chi-square variable of so many degrees >= chi_square): the regularised upper incomplete gamma."""
    half = torch.tensor([degrees / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
