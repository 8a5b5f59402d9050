"""The padded forms as torch operators, so that torch.compile and FakeTensor see them: torch.ops.ddtree.*.

Importing this module registers them. Plain calls go to `ddtree.padded` and `ddtree.sampling`, which do not
pay for the dispatcher.
"""

import torch
from torch import Tensor

from ddtree import launch
from ddtree.sampling_batch import tree_speculative_sampling_target_only

__all__ = ["build_trees", "target_only", "verify_trees"]


@torch.library.custom_op("ddtree::build_trees", mutates_args=())
def build_trees(
    top_log_probs: Tensor, top_token_ids: Tensor, child_rows: Tensor | None, budget: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`ddtree.launch.build_trees`: (fields, retrieve, visible, status)."""
    return launch.build_trees(top_log_probs, top_token_ids, child_rows, budget)


@build_trees.register_fake
def _(
    top_log_probs: Tensor, top_token_ids: Tensor, child_rows: Tensor | None, budget: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length = top_log_probs.shape[0], budget + 1
    empty = top_token_ids.new_empty
    return (
        empty(batch, launch.TREE_FIELDS, length),
        empty(batch, 3, length),
        empty(batch, length, length, dtype=torch.bool),
        empty(batch, 2),
    )


@torch.library.custom_op("ddtree::verify_trees", mutates_args=())
def verify_trees(
    logits: Tensor,
    candidates: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    coins: Tensor,
    final_coins: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`ddtree.launch.verify_trees`: (path, outcome, bonus, tried, decisions, status)."""
    arrays = (candidates, retrieve_next_token, retrieve_next_sibling, coins, final_coins)
    return launch.verify_trees(logits, *arrays, temperature, top_k, top_p, threshold_single, threshold_acc)


@verify_trees.register_fake
def _(
    logits: Tensor,
    candidates: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    coins: Tensor,
    final_coins: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, nodes = candidates.shape
    empty = candidates.new_empty
    return (
        empty(batch, nodes),
        empty(batch, 4),
        empty(batch, 3, dtype=torch.float64),
        empty(batch, nodes, 2),
        empty(batch, nodes, 3, dtype=torch.float64),
        empty(batch, dtype=torch.int32),
    )


@torch.library.custom_op(
    "ddtree::target_only", mutates_args=("predicts", "accept_index", "accept_token_num", "status")
)
def target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    status: Tensor,
    threshold_single: float,
    threshold_acc: float,
) -> None:
    """`tree_speculative_sampling_target_only` in its `status` form, in place."""
    tree_speculative_sampling_target_only(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        uniform_samples,
        uniform_samples_for_final_sampling,
        target_probs,
        None,
        threshold_single,
        threshold_acc,
        status=status,
    )
