"""Batches of trees and of walks that stay on their device, and the host's view of each.

The arrays have the size of the budget and can be used without knowing on the host what they hold; asking for
the view of one synchronises, and raises what the status says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree import launch
from ddtree.sampling import BONUS_SOURCES, TreeVerdict, TriedNode, check_rule
from ddtree.sampling_batch import check_thresholds
from ddtree.sampling_faults import fault_of_status
from ddtree.tree import DraftTree, rows_fault

__all__ = ["PaddedTrees", "PaddedVerdicts", "build_padded_trees", "verify_padded_trees"]


@dataclass(frozen=True, slots=True)
class PaddedTrees:
    """B trees of at most `budget` nodes, n = budget + 1 entries each, the root at 0."""

    top_log_probs: torch.Tensor  # float [B, R, K], what they were built from
    fields: torch.Tensor  # int64 [B, 6, n]: token_ids, depths, parents, ranks, rows, the bits of log_weights
    retrieve: torch.Tensor  # int64 [B, 3, n]: retrieve_index (tree * n + node), next_token, next_sibling
    visible: torch.Tensor  # bool [B, n, n]: a row sees its ancestors and itself; padding the root and itself
    status: torch.Tensor  # int64 [B, 2]: num_nodes, and 0 or 8 * entry + fault (then the root is alone)

    @property
    def candidates(self) -> torch.Tensor:
        """int64 [B, n]: token ids, 0 for the root and for padding."""
        return self.fields[:, 0]

    @property
    def depths(self) -> torch.Tensor:
        """int64 [B, n], 0 for the root and for padding."""
        return self.fields[:, 1]

    def tree(self, index: int) -> DraftTree:
        """The host's view of one tree. Raises ValueError as `build_ddtree_tree` does."""
        num_nodes, fault = self.status[index].tolist()
        if fault:
            raise rows_fault(fault, self.top_log_probs[index])
        fields = self.fields[index].cpu().numpy()
        return DraftTree(fields, fields.shape[1] - 1, num_nodes)


@dataclass(frozen=True, slots=True)
class PaddedVerdicts:
    """What B walks over trees of n nodes did; what a walk does not use is -1 in integers, 0 in numbers."""

    path: torch.Tensor  # int64 [B, n]: nodes, root first
    outcome: torch.Tensor  # int64 [B, 4]: accepted drafts, tried nodes, bonus token, its source
    bonus: torch.Tensor  # float64 [B, 3]: bonus_prob, bonus_cumulative, residual_mass
    tried: torch.Tensor  # int64 [B, n, 2]: node, accepted
    decisions: torch.Tensor  # float64 [B, n, 3]: prob, cumulative, coin
    status: torch.Tensor  # int32 [B]: 0, or 8 * node + fault

    def verdict(self, index: int) -> TreeVerdict:
        """The host's view of one walk. Raises SamplingFault naming batch row and node."""
        if status := int(self.status[index]):
            raise fault_of_status(status, None, index)
        accepted, tried, token, source = self.outcome[index].tolist()
        prob, cumulative, residual = self.bonus[index].tolist()
        children = self.tried[index, :tried].tolist()
        numbers = self.decisions[index, :tried].tolist()
        return TreeVerdict(
            self.path[index, : accepted + 1].tolist(),
            accepted,
            token,
            BONUS_SOURCES[source],
            prob,
            cumulative,
            residual,
            [
                TriedNode(node, p, cumulative, coin, bool(was_accepted))
                for (node, was_accepted), (p, cumulative, coin) in zip(children, numbers, strict=True)
            ],
        )


def build_padded_trees(
    top_log_probs: torch.Tensor,
    top_token_ids: torch.Tensor,
    budget: int,
    child_rows: torch.Tensor | None = None,
) -> PaddedTrees:
    """B draft trees with their encoding and visibility, each as `build_ddtree_tree` builds it.

    top_log_probs float32 or float64 [B, R, K], top_token_ids and child_rows int64 [B, R, K], on one device.
    Raises ValueError for shapes, dtypes, devices and the budget (on CUDA at most 1024).
    """
    built = launch.build_trees(top_log_probs, top_token_ids, child_rows, budget)
    return PaddedTrees(top_log_probs, *built)


def verify_padded_trees(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> PaddedVerdicts:
    """Walk B trees straight from logits [B, n, V], each as `verify_tree` does.

    candidates and retrieve_* int64 [B, n], coins float32 [B, n], final_coins float32 [B]; the rule is one for
    all. Raises ValueError for shapes, dtypes, devices and a rule out of range.
    """
    check_rule(temperature, top_k, top_p)
    check_thresholds(threshold_single, threshold_acc)
    walked = launch.verify_trees(
        logits,
        candidates,
        retrieve_next_token,
        retrieve_next_sibling,
        coins,
        final_coins,
        temperature,
        top_k,
        top_p,
        threshold_single,
        threshold_acc,
    )
    return PaddedVerdicts(*walked)
