"""Two probes of a drafter over trace steps: where it missed, and how far its probabilities can be believed.

Both look at what was committed: beyond a stop token or the length limit nothing is counted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from ddtree.trace import Step

RANKS = (1, 2, 4, 8, 16, 32)
"""Upper ends of the rank probe's classes, counted from 1."""

EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the calibration's bins; most nodes are improbable."""

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class RankProbe:
    """Rank of the target's token among the drafter's candidates where each step's walk ended.

    A token of low rank that was not in the tree is worth more budget; one of high rank, or beyond all, is
    the drafter's own miss.
    """

    counts: tuple[int, ...] = (0,) * len(RANKS)  # [i]: ranks above RANKS[i - 1], up to RANKS[i]
    beyond: int = 0  # no such token among the first RANKS[-1] candidates
    undrafted: int = 0  # the walk ended where nothing was drafted, below the last depth: no mismatch

    @property
    def mismatches(self) -> int:
        return sum(self.counts) + self.beyond


def rank_probe(steps: Iterable[Step]) -> RankProbe:
    """The bonus token's rank in the candidate row of the walk's last node, over all steps that have one."""
    counts, beyond, undrafted = [0] * len(RANKS), 0, 0
    for step in steps:
        if step.accept is None or step.committed is None:
            continue
        if len(step.committed.token_ids) < len(step.accept.accept_index):
            continue  # the bonus is not counted
        rank = step.accept.bonus_draft_rank
        if rank is not None and rank < RANKS[-1]:
            counts[bisect_left(RANKS, rank + 1)] += 1
        elif rank is not None or _drafted_below(step, step.accept.accept_index[-1]):
            beyond += 1
        else:
            undrafted += 1
    return RankProbe(tuple(counts), beyond, undrafted)


def _drafted_below(step: Step, node: int) -> bool:
    """Whether the drafter had candidates for the node's children, in the tree or not."""
    if step.draft is None or step.tree is None:
        return False
    rows = step.draft.rows
    if node == 0:
        return any(map(bool, rows.top_token_ids[:1]))
    row, rank = step.tree.row[node - 1], step.tree.ranks[node - 1]
    child = row + 1 if rows.child_rows is None else rows.child_rows[row][rank]
    return 0 <= child < len(rows.top_token_ids)


@dataclass(frozen=True, slots=True)
class Bin:
    """Nodes of similar drafter probability whose parent the walk stood on."""

    low: float
    high: float
    nodes: int = 0
    agreed: int = 0  # the target's next token was this node's
    draft_prob: float = 0.0  # summed over the nodes

    @property
    def rate(self) -> float | None:
        """How often the target agreed."""
        return self.agreed / self.nodes if self.nodes else None

    @property
    def mean_draft_prob(self) -> float | None:
        return self.draft_prob / self.nodes if self.nodes else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % of the rate by Wilson's score (J. Am. Stat. Assoc. 22, 1927), as if nodes were independent;
        siblings exclude each other, which makes it a little too wide."""
        if not self.nodes:
            return None
        n, rate = self.nodes, self.agreed / self.nodes
        centre = rate + Z_95**2 / (2 * n)
        spread = Z_95 * math.sqrt(rate * (1 - rate) / n + Z_95**2 / (4 * n * n))
        scale = 1 + Z_95**2 / n
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def calibration(steps: Iterable[Step]) -> list[Bin]:
    """The drafter's probability of a node, given its parent, against how often the target agreed.

    Counted are the nodes whose parent the walk stood on, tried or not: with thresholds 1 the walk takes each
    of them with the target's probability, whatever its place among its siblings.
    """
    bins = [Bin(low, high) for low, high in pairwise(EDGES)]
    for step in steps:
        if step.tree is None or step.accept is None or step.committed is None:
            continue
        committed, path = len(step.committed.token_ids), step.accept.accept_index
        standing, taken = set(path[:committed]), set(path[1 : committed + 1])
        for node, parent in enumerate(step.tree.parents):
            if parent not in standing:
                continue
            prob = min(math.exp(step.tree.draft_log_probs[node - 1]), 1.0)
            at = min(bisect_right(EDGES, prob), len(bins)) - 1
            bins[at] = replace(
                bins[at],
                nodes=bins[at].nodes + 1,
                agreed=bins[at].agreed + (node in taken),
                draft_prob=bins[at].draft_prob + prob,
            )
    return bins
