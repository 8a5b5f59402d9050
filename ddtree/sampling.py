"""The samplers: walk a draft tree with the target's rows, commit one path and one bonus token.

From the root, with one coin for each visited node, the children are tried in sibling order while their
probabilities in the parent's row add up; the first with `prob > 0 and (coin < cumulative / threshold_acc or
prob >= threshold_single)` is accepted. Where none is, the bonus token is drawn with a coin of its own from
the row minus the rejected tokens, which makes the committed tokens exact samples of the target while both
thresholds are 1. (EAGLE, arXiv 2401.15077; the interface of SGLang's tree_speculative_sampling_target_only.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch

from ddtree import _kernels
from ddtree.launch import ELEMENTS, has_kernels_for
from ddtree.retrieve import validate_topology
from ddtree.sampling_batch import check_thresholds, tree_speculative_sampling_target_only
from ddtree.sampling_faults import TOPOLOGY, SamplingFault, fault_of_status, unpack_status

if TYPE_CHECKING:
    from ddtree.padded import PaddedVerdicts

__all__ = [
    "SamplingFault",
    "TreeVerdict",
    "TriedNode",
    "coins",
    "tree_speculative_sampling_target_only",
    "verify_tree",
    "verify_tree_greedy",
]

BonusSource = Literal["full_row", "residual", "argmax", "last_tried"]

BONUS_SOURCES: tuple[BonusSource, ...] = ("full_row", "residual", "argmax", "last_tried")


class TriedNode(NamedTuple):
    """The decision at a child that the walk tried; from these very numbers it can be made again."""

    node: int
    prob: float  # in the distribution sampled from, given its parent
    cumulative: float  # with its earlier siblings
    coin: float  # its parent's
    accepted: bool


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """What a walk did. The bonus token is the first whose running sum over what is left, bonus_cumulative, is
    above final coin * residual_mass; before it the sum is bonus_cumulative - bonus_prob (rounding: 1e-6)."""

    accept_index: list[int]  # nodes of the path, root first
    accept_token_num: int  # accepted drafts: len(accept_index) - 1
    bonus_token_id: int
    bonus_source: (
        BonusSource  # the whole row after a full path; the row minus the rejected; greedy; no mass left
    )
    bonus_prob: float  # in the whole row
    bonus_cumulative: float  # the running sum of what is left, at the bonus token
    residual_mass: float  # that running sum's own end; 0 for last_tried
    decisions: list[TriedNode]  # in the order in which they were made


def coins(seed: int, step: int, count: int) -> tuple[torch.Tensor, float]:
    """(a coin for each of `count` nodes, float32 [count]; the coin of the bonus token), uniform in [0, 1).

    Pure functions of (seed, step, node) and (seed, step): the upper 24 bits of the first word that
    Philox4x32-10 gives with the seed as key and (node, stream, step) as counter. 0 <= seed, step < 2^64.
    """
    drawn = torch.empty(count, dtype=torch.float32)
    _kernels.coins(seed, step, count, drawn.data_ptr())
    return drawn, _kernels.final_coin(seed, step)


@overload
def verify_tree(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    coins: torch.Tensor,
    final_coin: float,
    threshold_single: float,
    threshold_acc: float,
    status: None = None,
) -> TreeVerdict: ...
@overload
def verify_tree(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    coins: torch.Tensor,
    final_coin: float,
    threshold_single: float,
    threshold_acc: float,
    status: torch.Tensor,
) -> TreeVerdict | PaddedVerdicts | None: ...
def verify_tree(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    coins: torch.Tensor,
    final_coin: float,
    threshold_single: float,
    threshold_acc: float,
    status: torch.Tensor | None = None,
) -> TreeVerdict | PaddedVerdicts | None:
    """Walk one tree straight from logits [n, V], float32, bfloat16 or float16; only visited rows are read.

    candidates, retrieve_* int64 [n], coins float32 [n]. A row is sampled by temperature (below 1e-5: greedy),
    then top-k (0: off; all equal to the k-th stay), then top-p on what is left (1: off; by probability
    descending, then id ascending, the shortest prefix that reaches it): the order of transformers' warpers.
    Thresholds lie in 0..1; below 1 the walk is lossy.

    Raises SamplingFault (a ValueError) naming the node for NaN, +inf or no mass in a visited row, ValueError
    for a broken topology or equal tokens among siblings. With `status` (int32 [1]) these do not raise: it is
    set to 8 * node + kind (0: fine), and None is returned; on CUDA, where knowing that would synchronise,
    PaddedVerdicts of this one walk.
    """
    check_rule(temperature, top_k, top_p)
    check_thresholds(threshold_single, threshold_acc)
    if coins.dtype != torch.float32 or coins.shape != candidates.shape:
        raise ValueError(
            f"coins must be float32 {list(candidates.shape)}, not {coins.dtype} {list(coins.shape)}"
        )
    return _walk(
        logits,
        (candidates, retrieve_next_token, retrieve_next_sibling),
        (temperature, top_k, top_p),
        coins,
        (final_coin, threshold_single, threshold_acc),
        status,
    )


def verify_tree_greedy(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
) -> TreeVerdict:
    """Follow the argmax (the lowest id among equals) of logits [n, V] down the tree; the bonus token is the
    argmax after it. Probabilities in the decisions are 1 and 0, coins 0. Raises as verify_tree does."""
    tree = (candidates, retrieve_next_token, retrieve_next_sibling)
    verdict = _walk(logits, tree, (0.0, 0, 1.0), None, (0.0, 1.0, 1.0), None)
    assert isinstance(verdict, TreeVerdict)
    return verdict


def _walk(
    logits: torch.Tensor,
    tree: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rule: tuple[float, int, float],
    node_coins: torch.Tensor | None,
    coin_and_thresholds: tuple[float, float, float],
    status: torch.Tensor | None,
) -> TreeVerdict | PaddedVerdicts | None:
    if logits.dim() != 2 or logits.dtype not in ELEMENTS or logits.shape[1] == 0:
        given = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(f"logits must be [nodes, vocabulary] in float32, bfloat16 or float16, not {given}")
    nodes, size = logits.shape
    for name, array in zip(("candidates", "retrieve_next_token", "retrieve_next_sibling"), tree, strict=True):
        if array.dtype != torch.int64 or array.shape != (nodes,):
            raise ValueError(f"{name} must be int64 [{nodes}], not {array.dtype} {list(array.shape)}")
    if nodes == 0:
        raise ValueError("the tree is empty; node 0 is the root")
    if not logits.is_cpu and has_kernels_for(logits):
        return _walk_on_device(logits, tree, rule, node_coins, coin_and_thresholds, status)
    logits = on_host_rows(logits)
    candidates, next_token, next_sibling = map(_on_host, tree)
    on_host_coins = None if node_coins is None else _on_host(node_coins)
    outcome = _kernels.verify(
        logits.data_ptr(),
        ELEMENTS[logits.dtype],
        logits.stride(0),
        size,
        nodes,
        candidates.data_ptr(),
        next_token.data_ptr(),
        next_sibling.data_ptr(),
        *rule,
        0 if on_host_coins is None else on_host_coins.data_ptr(),
        *coin_and_thresholds,
    )
    if status is not None:
        status.fill_(outcome if isinstance(outcome, int) else 0)
    if isinstance(outcome, int):
        if status is not None:
            return None
        raise _fault(outcome, logits, (candidates, next_token, next_sibling))
    path, bonus, source, prob, cumulative, residual, tried = outcome
    decisions = list(map(TriedNode._make, tried))
    return TreeVerdict(
        path, len(path) - 1, bonus, BONUS_SOURCES[source], prob, cumulative, residual, decisions
    )


def _walk_on_device(
    logits: torch.Tensor,
    tree: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rule: tuple[float, int, float],
    node_coins: torch.Tensor | None,
    coin_and_thresholds: tuple[float, float, float],
    status: torch.Tensor | None,
) -> TreeVerdict | PaddedVerdicts:
    from ddtree.padded import verify_padded_trees

    final_coin, threshold_single, threshold_acc = coin_and_thresholds
    drawn = logits.new_zeros(len(tree[0]), dtype=torch.float32) if node_coins is None else node_coins
    padded = verify_padded_trees(
        logits[None],
        *(array.to(logits.device)[None] for array in tree),
        temperature=rule[0],
        top_k=rule[1],
        top_p=rule[2],
        coins=drawn.to(logits.device)[None],
        final_coins=torch.full((1,), final_coin, device=logits.device),
        threshold_single=threshold_single,
        threshold_acc=threshold_acc,
    )
    if status is not None:
        status.copy_(padded.status)
        return padded
    if outcome := int(padded.status):
        raise _fault(outcome, logits, tree)
    return padded.verdict(0)


def _fault(
    status: int, logits: torch.Tensor, tree: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> ValueError:
    """The exception for a walk's status."""
    node, kind = unpack_status(status)
    if kind == TOPOLOGY:
        candidates, next_token, next_sibling = tree
        validate_topology(next_token, next_sibling, candidates)
    return fault_of_status(status, logits[node])


def on_host_rows(logits: torch.Tensor) -> torch.Tensor:
    """The same rows where the kernels can read them: on the CPU, each row contiguous."""
    if not logits.is_cpu:
        logits = logits.cpu()
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _on_host(array: torch.Tensor) -> torch.Tensor:
    return array if array.is_cpu and array.is_contiguous() else array.cpu().contiguous()


def check_rule(temperature: float, top_k: int, top_p: float) -> None:
    """Raises ValueError for one that is out of its range."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be finite and at least 0")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0 (0: off)")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must lie in (0, 1] (1: off)")
