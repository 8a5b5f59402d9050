"""The bootstrap over prompts and their repeats."""

from __future__ import annotations

import numpy as np
import pytest

from app.bench.intervals import geometric_interval


def test_nothing_and_one_prompt_have_no_interval() -> None:
    assert geometric_interval([[], []]) is None
    one = geometric_interval([[2.0, 8.0]])
    assert one is not None
    assert (one.mean, one.low, one.high) == (pytest.approx(4.0), None, None)


def test_every_prompt_weighs_the_same() -> None:
    found = geometric_interval([[1.0] * 9, [4.0]])
    assert found is not None and found.mean == pytest.approx(2.0)


def test_equal_values_leave_no_doubt() -> None:
    found = geometric_interval([[2.0, 2.0]] * 5)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_repeats_of_a_prompt_do_not_make_the_interval_narrower() -> None:
    """Prompts that differ, repeats that do not: 50 repeats say as much as one."""
    values = [[1.0], [1.2], [1.5], [1.1], [1.4], [1.3]]
    once, often = geometric_interval(values), geometric_interval([repeats * 50 for repeats in values])
    assert once is not None and often is not None
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_it_covers_the_truth_about_as_often_as_it_says() -> None:
    """40 prompts x 3 repeats, 120 times: at least 103 intervals hold the true mean, and one does not. With a
    true 94 % (a bootstrap of 40 is a little narrow) another seed would fail once in 700."""
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(120):
        prompts = 0.3 * random.standard_normal((40, 1)) + 0.1 * random.standard_normal((40, 3))
        found = geometric_interval(np.exp(prompts + 0.5).tolist())
        assert found is not None and found.low is not None and found.high is not None
        hits += found.low <= np.exp(0.5) <= found.high
    assert 103 <= hits < 120
