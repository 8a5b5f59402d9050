"""A walk through a tree from elsewhere, by the sampler's own kernel, with coins of one's choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ddtree.foreign.errors import ForeignError
from ddtree.foreign.trees import ForeignTree
from ddtree.sampling import BonusSource, TriedNode, tree_speculative_sampling_target_only
from ddtree.sampling_batch import check_thresholds


@dataclass(frozen=True)
class ForeignWalk:
    """As `ddtree.TreeVerdict`; bonus_token_id is None where only the children's probabilities are known and
    another token was drawn."""

    accept_index: list[int]
    bonus_token_id: int | None
    bonus_source: BonusSource
    bonus_prob: float
    bonus_cumulative: float
    residual_mass: float
    decisions: list[TriedNode]
    probs: list[float | None]  # [N]: each node's, given its parent; None: the walk was not there


def walk_tree(
    tree: ForeignTree,
    coins: Sequence[float],
    final_coin: float,
    *,
    node_probs: Sequence[float] | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> ForeignWalk:
    """Walk `tree` with a coin for each node [N + 1], root first, and one for the bonus token, by
    `tree_speculative_sampling_target_only`.

    node_probs [N], each node's target probability given its parent, come before the tree's own, which come
    before its rows of target_probs [N + 1, V]. Of node_probs each row is made: what they leave of it belongs
    to another token. Raises ForeignError for what cannot be walked.
    """
    if len(coins) != tree.size + 1:
        raise ForeignError(f"{tree.size + 1} coins are needed (the root's first), not {len(coins)}")
    for place, coin in [*enumerate(coins), ("final", final_coin)]:
        if not 0 <= coin < 1:
            raise ForeignError(f"coin {place} is {coin}; a coin lies in [0, 1)")
    rows, tokens, other = _rows(tree, node_probs)
    tensors = _Outputs(tree.size + 1)
    try:
        check_thresholds(threshold_single, threshold_acc)
        tree_speculative_sampling_target_only(
            tensors.predicts,
            tensors.accept_index,
            tensors.accept_token_num,
            torch.tensor([tokens]),
            torch.arange(tree.size + 1)[None],
            torch.tensor([tree.next_token]),
            torch.tensor([tree.next_sibling]),
            torch.tensor([list(coins)], dtype=torch.float32),
            torch.tensor([final_coin], dtype=torch.float32),
            torch.from_numpy(rows)[None],
            None,
            threshold_single,
            threshold_acc,
        )
    except ValueError as error:
        raise ForeignError(str(error)) from None
    return _told(tree, rows, tokens, other, coins, tensors)


class _Outputs:
    """What the kernel writes, of one tree."""

    def __init__(self, nodes: int) -> None:
        self.predicts = torch.full((nodes,), -1, dtype=torch.int32)
        self.accept_index = torch.full((1, nodes), -1, dtype=torch.int32)
        self.accept_token_num = torch.zeros(1, dtype=torch.int32)

    @property
    def path(self) -> list[int]:
        return self.accept_index[0, : int(self.accept_token_num[0]) + 1].tolist()


def _rows(
    tree: ForeignTree, node_probs: Sequence[float] | None
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], list[int], int | None]:
    """(rows [N + 1, V], the column of each node's token, the column of "another token" or None)."""
    probs = tree.node_probs if node_probs is None else node_probs
    if probs is None:
        if tree.target_probs is None:
            raise ForeignError(
                "the walk needs target probabilities: give target_probs with the tree, or each node's here"
            )
        if tree.token_ids is None:
            raise ForeignError("the walk needs token ids to find the nodes in the rows of target_probs")
        size = tree.target_probs.shape[1]
        for node, token in enumerate(tree.token_ids, 1):
            if not 0 <= token < size:
                raise ForeignError(f"node {node} has token {token}; target_probs has columns 0 to {size - 1}")
        return tree.target_probs, [0, *tree.token_ids], None
    if len(probs) != tree.size:
        raise ForeignError(f"{tree.size} nodes need {tree.size} probabilities, not {len(probs)}")
    names = list(range(1, tree.size + 1)) if tree.token_ids is None else tree.token_ids
    column = {token: place for place, token in enumerate(sorted(set(names)))}
    rows = np.zeros((tree.size + 1, len(column) + 1), dtype=np.float32)
    for node, (token, prob) in enumerate(zip(names, probs, strict=True), 1):
        if not 0 <= prob <= 1:
            raise ForeignError(f"the probability of node {node} is {prob}; it lies in 0..1")
        if tree.parents[node] >= 0:
            rows[tree.parents[node], column[token]] = prob
    used = rows.sum(axis=1, dtype=np.float64)
    for node, sum_ in enumerate(used.tolist()):
        if sum_ > 1 + 1e-5:
            raise ForeignError(
                f"the children of node {node} have {sum_:.6g} together; one row holds at most 1"
            )
    rows[:, -1] = np.maximum(1 - used, 0)
    return rows, [0, *(column[token] for token in names)], len(column)


def _told(
    tree: ForeignTree,
    rows: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    columns: Sequence[int],
    other: int | None,
    coins: Sequence[float],
    outputs: _Outputs,
) -> ForeignWalk:
    """The kernel's path in the words of a trace: what was tried, with which running sums."""
    path = outputs.path
    decisions: list[TriedNode] = []
    probs: list[float | None] = [None] * tree.size
    for place, node in enumerate(path):
        taken = path[place + 1] if place + 1 < len(path) else None
        total, open_ = 0.0, True
        for child in tree.children[node]:
            prob = float(rows[node, columns[child]])
            probs[child - 1] = prob
            if open_:
                total += prob
                decisions.append(
                    TriedNode(child, prob, total, float(np.float32(coins[node])), child == taken)
                )
                open_ = child != taken
    last = path[-1]
    left = rows[last].astype(np.float64)
    tried = [columns[child] for child in tree.children[last]]
    left[tried] = 0
    bonus = int(outputs.predicts[last])
    source: BonusSource = "residual" if tried else "full_row"
    if left.sum() <= 0:
        source = "last_tried"
    names = {columns[node]: token for node, token in enumerate(tree.token_ids or [], 1)}
    return ForeignWalk(
        path,
        None if bonus == other else names.get(bonus) if other is not None else bonus,
        source,
        float(rows[last, bonus]),
        float(left[: bonus + 1].sum()),
        float(left.sum()),
        decisions,
        probs,
    )
