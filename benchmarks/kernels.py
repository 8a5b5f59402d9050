"""The kernels on one thread, each beside what it replaces, in turn in one run.

tree       build + encoding against a straightforward Python heap with parents, children and arrays, from the
           drafter's tensors to the tree's tensors, 15 rows of 64 candidates, budgets 16 to 1024
top-k      top-k (K = 64) with log-sum-exp of [15, 49152] float32 logits against torch.topk + torch.logsumexp
sampler    see kernels_sampling.py
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from kernels_sampling import in_turn, run
from kernels_sampling import report as report_sampling

from ddtree import _kernels, build_ddtree_tree_from_topk, compile_ddtree_retrieve, topk_log_softmax

DEPTHS, CANDIDATES, VOCABULARY = 15, 64, 49_152
BUDGETS = (16, 64, 256, 1024)
DRAFTS = 50

Arrays = tuple[torch.Tensor, ...]


def draft_logits(seed: int) -> torch.Tensor:
    """What a drafter gives: float32 [DEPTHS, VOCABULARY]."""
    return torch.randn(DEPTHS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def python_heap(top_log_probs: torch.Tensor, top_token_ids: torch.Tensor, budget: int) -> Arrays:
    """The same tree and arrays by Python's heapq."""
    log_probs, token_ids = top_log_probs.tolist(), top_token_ids.tolist()
    heap = [(-log_probs[0][0], (0,), 0)]  # minus log-weight, path of ranks, parent
    tokens: list[int] = []
    depths: list[int] = []
    log_weights: list[float] = [0.0]
    parents: list[int] = [-1]
    children: list[dict[int, int]] = [{}]  # of each node: token -> node
    while heap and len(tokens) < budget:
        minus_log_weight, ranks, parent = heapq.heappop(heap)
        depth, rank, node = len(ranks), ranks[-1], len(tokens) + 1
        tokens.append(token_ids[depth - 1][rank])
        depths.append(depth)
        log_weights.append(-minus_log_weight)
        parents.append(parent)
        children[parent][tokens[-1]] = node
        children.append({})
        if rank + 1 < len(log_probs[depth - 1]):
            sibling = log_weights[parent] + log_probs[depth - 1][rank + 1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent))
        if depth < len(log_probs):
            child = log_weights[node] + log_probs[depth][0]
            heapq.heappush(heap, (-child, (*ranks, 0), node))
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node, by_token in enumerate(children):
        siblings = list(by_token.values())
        if siblings:
            next_token[node] = siblings[0]
        for one, following in pairwise(siblings):
            next_sibling[one] = following
    return (
        torch.tensor(tokens),
        torch.tensor(depths),
        torch.tensor(parents),
        torch.tensor(log_weights[1:], dtype=torch.float64),
        torch.arange(len(parents)),
        torch.tensor(next_token),
        torch.tensor(next_sibling),
    )


def kernels(top_log_probs: torch.Tensor, top_token_ids: torch.Tensor, budget: int) -> Arrays:
    tree = build_ddtree_tree_from_topk(top_log_probs, top_token_ids, budget)
    arrays = compile_ddtree_retrieve(tree)
    return (
        tree.token_ids,
        tree.depths,
        tree.parents,
        tree.log_weights,
        arrays.retrieve_index,
        arrays.retrieve_next_token,
        arrays.retrieve_next_sibling,
    )


def over(drafts: list[Arrays], call: Callable[..., Any], budget: int) -> Callable[[], None]:
    """One call a draft: a single one is too short to be timed, the same again would be learnt by heart."""

    def calls() -> None:
        for top_log_probs, top_token_ids in drafts:
            call(top_log_probs, top_token_ids, budget)

    return calls


def tree(rounds: int) -> Iterator[str]:
    drafts = [topk_log_softmax(draft_logits(seed), CANDIDATES) for seed in range(DRAFTS)]
    for budget in BUDGETS:
        for draft in drafts:
            pairs = zip(kernels(*draft, budget), python_heap(*draft, budget), strict=True)
            assert all(torch.equal(mine, other) for mine, other in pairs)
        mine, other = in_turn(rounds, over(drafts, kernels, budget), over(drafts, python_heap, budget))
        yield (
            f"  budget {budget:4}: {mine / DRAFTS * 1e6:6.1f} us against {other / DRAFTS * 1e6:7.1f} us: "
            f"{other / mine:5.1f} times faster"
        )


def top_k(rounds: int) -> Iterator[str]:
    logits = draft_logits(seed=0)

    def theirs() -> None:
        torch.topk(logits, CANDIDATES)
        torch.logsumexp(logits, dim=-1)

    best = _kernels.instruction_set()
    for name in ("portable", "avx2", "avx512"):
        if not _kernels.use_instruction_set(name):
            continue
        mine, other = in_turn(rounds, lambda: topk_log_softmax(logits, CANDIDATES), theirs)
        used = " (used here)" if name == best else ""
        yield (
            f"  {name:8}: {mine * 1e6:6.0f} us against {other * 1e6:6.0f} us: "
            f"{other / mine:4.1f} times faster{used}"
        )
    _kernels.use_instruction_set(best)


def report(rounds: int) -> Iterator[str]:
    """The lines that this benchmark prints."""
    yield f"tree build + encoding, {DEPTHS} rows of {CANDIDATES}, against a Python heap"
    yield from tree(rounds)
    shape = f"[{DEPTHS}, {VOCABULARY}]"
    yield f"top-{CANDIDATES} with log-sum-exp of {shape} float32, against torch.topk + torch.logsumexp"
    yield from top_k(rounds)
    yield from report_sampling(rounds)


if __name__ == "__main__":
    run(report, __doc__)
