"""The walk of a pasted tree is the kernel's: compared with verify_tree on the logarithms of the same rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddtree import verify_tree
from ddtree.foreign import ForeignError, recognise, walk_tree

PARENTS, TOKENS = [-1, 0, 1, 2, 0, 1], [10, 20, 30, 11, 21]


@given(st.integers(0, 2**31), st.lists(st.floats(0, 1, width=32, exclude_max=True), min_size=7, max_size=7))
def test_the_walk_with_whole_rows_is_verify_trees(seed: int, coins: list[float]) -> None:
    rows = torch.softmax(torch.randn(6, 40, generator=torch.Generator().manual_seed(seed)), dim=1)
    rows[:, TOKENS] *= 8
    rows /= rows.sum(1, keepdim=True)
    tree = recognise({"parents": PARENTS, "token_ids": TOKENS, "target_probs": rows.tolist()}).trees[0]
    walk = walk_tree(tree, coins[:6], coins[6])
    reference = verify_tree(
        rows.log(),
        torch.tensor([0, *TOKENS]),
        torch.tensor(tree.next_token),
        torch.tensor(tree.next_sibling),
        temperature=1,
        top_k=0,
        top_p=1,
        coins=torch.tensor(coins[:6], dtype=torch.float32),
        final_coin=coins[6],
        threshold_single=1,
        threshold_acc=1,
    )
    near = min(abs(d.coin - d.cumulative) for d in reference.decisions) < 1e-5
    if not near:  # through logits the rows round differently
        assert walk.accept_index == reference.accept_index
        assert [(d.node, d.accepted) for d in walk.decisions] == [
            (d.node, d.accepted) for d in reference.decisions
        ]
        assert np.allclose(
            [d.cumulative for d in walk.decisions], [d.cumulative for d in reference.decisions], atol=1e-5
        )
        assert walk.residual_mass == pytest.approx(reference.residual_mass, abs=1e-5)
        assert walk.bonus_source == reference.bonus_source


def test_a_coin_moves_the_path() -> None:
    tree = recognise({"parents": PARENTS, "token_ids": TOKENS, "probs": [0.5, 0.6, 0.9, 0.3, 0.2]}).trees[0]
    at = [0.0] * 6

    def path(**moved: float) -> list[int]:
        coins = [moved.get(f"coin_{node}", coin) for node, coin in enumerate(at)]
        return walk_tree(tree, coins, 0.5).accept_index

    assert path() == [0, 1, 2, 3]
    assert path(coin_0=0.49) == [0, 1, 2, 3]
    assert path(coin_0=0.51) == [0, 4]  # .5 + .3
    assert path(coin_0=0.81) == [0]
    assert path(coin_1=0.61) == [0, 1, 5]
    assert path(coin_2=0.95) == [0, 1, 2]


def test_of_node_probabilities_another_token_may_be_the_bonus() -> None:
    tree = recognise({"parents": [-1, 0, 0], "token_ids": [7, 5], "probs": [0.5, 0.25]}).trees[0]
    walk = walk_tree(tree, [0.8, 0, 0], 0.5)
    assert walk.accept_index == [0]
    assert walk.bonus_token_id is None  # neither 7 nor 5
    assert walk.residual_mass == pytest.approx(0.25)
    assert [(d.node, d.accepted, d.cumulative) for d in walk.decisions] == [(1, False, 0.5), (2, False, 0.75)]
    exhausted = recognise({"parents": [-1, 0, 0], "token_ids": [7, 5], "probs": [0.5, 0.4999999]}).trees[0]
    assert walk_tree(exhausted, [0.99999994, 0, 0], 0.0).bonus_source in ("last_tried", "residual")


def test_lossy_thresholds_accept_more() -> None:
    tree = recognise({"parents": [-1, 0], "token_ids": [0], "target_probs": [[0.3, 0.7], [0.5, 0.5]]}).trees[
        0
    ]
    assert walk_tree(tree, [0.5, 0], 0).accept_index == [0]
    assert walk_tree(tree, [0.5, 0], 0, threshold_acc=0.5).accept_index == [0, 1]


@pytest.mark.parametrize(
    ("probs", "coins", "part"),
    [
        (None, [0, 0, 0], "the walk needs target probabilities"),
        ([0.5], [0, 0, 0], "2 nodes need 2 probabilities, not 1"),
        ([0.75, 0.5], [0, 0, 0], "the children of node 0 have 1.25 together"),
        ([1.5, 0], [0, 0, 0], "the probability of node 1 is 1.5"),
        ([float("nan"), 0], [0, 0, 0], "the probability of node 1 is nan"),
        ([0.5, 0.5], [0, 0], "3 coins are needed"),
        ([0.5, 0.5], [0, 1, 0], "coin 1 is 1; a coin lies in [0, 1)"),
    ],
)
def test_what_cannot_be_walked_is_said(probs: list[float] | None, coins: list[float], part: str) -> None:
    tree = recognise({"parents": [-1, 0, 0], "token_ids": [7, 5]}).trees[0]
    with pytest.raises(ForeignError) as refusal:
        walk_tree(tree, coins, 0.0, node_probs=probs)
    assert part in str(refusal.value)


def test_a_broken_tree_is_not_walked() -> None:
    tree = recognise(
        {"retrieve_next_token": [1, 0], "retrieve_next_sibling": [-1, -1], "candidates": [1, 2]}
    ).trees[0]
    with pytest.raises(ForeignError, match="cycle"):
        walk_tree(tree, [0, 0], 0, node_probs=[0.5])
