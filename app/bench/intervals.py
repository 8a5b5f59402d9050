"""Means of rates and ratios with a 95 % interval, by bootstrap over prompts and their repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_DRAWS = 4000
_SEED = 0
"""The same figures from the same records."""


@dataclass(frozen=True, slots=True)
class Interval:
    """`low`, `high`: 2.5 % and 97.5 %; None where one prompt alone says nothing of others."""

    mean: float
    low: float | None
    high: float | None


def geometric_interval(values: Sequence[Sequence[float]]) -> Interval | None:
    """The geometric mean of `values` [prompt][repeat], every prompt weighing the same; None without any.

    Each draw takes prompts with replacement, and of each taken prompt its repeats with replacement: prompts
    differ and repeats of a prompt are not independent of it. For a handful of prompts it is too narrow.
    """
    kept = [np.log(np.asarray(repeats)) for repeats in values if len(repeats)]
    if not kept:
        return None
    mean = float(np.exp(np.mean([logs.mean() for logs in kept])))
    if len(kept) < 2:
        return Interval(mean, None, None)
    counts = np.array([len(logs) for logs in kept])
    table = np.zeros((len(kept), counts.max()))
    for row, logs in zip(table, kept, strict=True):
        row[: len(logs)] = logs
    random = np.random.default_rng(_SEED)
    prompts = random.integers(len(kept), size=(_DRAWS, len(kept)))
    drawn = counts[prompts][..., None]
    repeats = (random.random((*prompts.shape, table.shape[1])) * drawn).astype(np.int64)
    inside = np.arange(table.shape[1]) < drawn
    logs = np.where(inside, table[prompts[..., None], repeats], 0.0).sum(axis=2) / drawn[..., 0]
    low, high = np.exp(np.quantile(logs.mean(axis=1), (0.025, 0.975)))
    return Interval(mean, float(low), float(high))
