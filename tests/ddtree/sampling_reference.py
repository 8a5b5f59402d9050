"""The samplers again, in plain Python and float64, and random trees to try both on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from ddtree.sampling import TreeVerdict, verify_tree

Row = Sequence[float]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Tree:
    """parents[0] == -1, parents[i] < i; siblings in ascending order."""

    parents: list[int]
    tokens: list[int]

    @property
    def children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, len(self.parents)):
            children[self.parents[node]].append(node)
        return children

    def arrays(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """candidates, retrieve_next_token, retrieve_next_sibling."""
        next_token, next_sibling = [-1] * len(self.parents), [-1] * len(self.parents)
        for node, children in enumerate(self.children):
            for child, following in itertools.pairwise([*children, -1]):
                next_sibling[child] = following
            next_token[node] = children[0] if children else -1
        return torch.tensor(self.tokens), torch.tensor(next_token), torch.tensor(next_sibling)


def star(tokens: Sequence[int]) -> Tree:
    """A root whose children are `tokens`."""
    return Tree([-1] + [0] * len(tokens), [0, *tokens])


def chain(tokens: Sequence[int]) -> Tree:
    return Tree(list(range(-1, len(tokens))), [0, *tokens])


@st.composite
def trees(draw: st.DrawFn, size: int, most_nodes: int = 12) -> Tree:
    """Trees with tokens below `size`, different among siblings."""
    parents, tokens = [-1], [0]
    taken: list[set[int]] = [set()]
    for node in range(1, draw(st.integers(1, most_nodes))):
        parent = draw(st.integers(0, node - 1))
        token = draw(st.integers(0, size - 1))
        while token in taken[parent] and len(taken[parent]) < size:
            token = (token + 1) % size
        if token in taken[parent]:
            break
        taken[parent].add(token)
        parents.append(parent)
        tokens.append(token)
        taken.append(set())
    return Tree(parents, tokens)


@dataclass
class Verdict:
    """`margin` is how close the closest decision was: below about 1e-5 float32 may decide otherwise."""

    path: list[int]
    bonus: int
    source: str
    bonus_prob: float
    residual: float
    decisions: list[tuple[int, float, float, bool]] = field(default_factory=list)  # node, prob, cumulative
    margin: float = math.inf


def walk(
    rows: Sequence[Row],
    tree: Tree,
    coins: Sequence[float],
    final: float,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    most_accepted: int | None = None,
) -> Verdict:
    """DESIGN's sampler over rows of probabilities."""
    node, path, decisions, margin = 0, [0], [], math.inf
    while True:
        row, tried, accepted, cumulative = list(rows[node]), [], None, 0.0
        full = most_accepted is not None and len(path) - 1 == most_accepted
        for child in [] if full else tree.children[node]:
            token = tree.tokens[child]
            prob = 0.0 if token in tried else row[token]
            cumulative += prob
            holds = prob > 0 and (
                threshold_acc == 0 or coins[node] < cumulative / threshold_acc or prob >= threshold_single
            )
            decisions.append((child, prob, cumulative, holds))
            if prob > 0 and threshold_acc > 0:
                margin = min(
                    margin, abs(coins[node] - cumulative / threshold_acc), abs(prob - threshold_single)
                )
            if holds:
                accepted = child
                break
            tried.append(token)
        if accepted is None:
            break
        node = accepted
        path.append(node)
    left = [0.0 if token in tried else p for token, p in enumerate(row)]
    total = sum(left)
    if total == 0:
        bonus = next(token for token in reversed(tried) if row[token] > 0)
        return Verdict(path, bonus, "last_tried", row[bonus], 0.0, decisions, margin)
    running, bonus = 0.0, None
    for token, p in enumerate(left):
        running += p
        margin = (
            min(margin, abs(running - final * total)) if p > 0 and running < total * (1 - 1e-9) else margin
        )
        if running > final * total and bonus is None:
            bonus = token
    if bonus is None:
        bonus = max(token for token, p in enumerate(left) if p > 0)
    return Verdict(path, bonus, "residual" if tried else "full_row", row[bonus], total, decisions, margin)


def sampled_row(
    logits: Row, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> tuple[list[float], float]:
    """(the distribution sampled from, how close the top-p cut was)."""
    maximum = max(logits)
    if temperature < 1e-5:
        return [float(i == logits.index(maximum)) for i in range(len(logits))], math.inf
    masses = [math.exp((x - maximum) / temperature) for x in logits]
    if 0 < top_k < len(logits):
        least = sorted(logits, reverse=True)[top_k - 1]
        masses = [mass if x >= least else 0.0 for mass, x in zip(masses, logits, strict=True)]
    margin = math.inf
    if top_p < 1:
        goal, running, kept = top_p * math.fsum(masses), 0.0, set[int]()
        for token in sorted(range(len(masses)), key=lambda i: (-masses[i], i)):
            if running >= goal:
                break
            running += masses[token]
            margin = min(margin, abs(running - goal) / goal)
            kept.add(token)
        masses = [mass if token in kept else 0.0 for token, mass in enumerate(masses)]
    total = math.fsum(masses)
    return [mass / total for mass in masses], margin


# ---- the sampler under test ----


def verify(
    logits: torch.Tensor, tree: Tree, coin: float | list[float], final: float = 0.0, **rule: Any
) -> TreeVerdict:
    """With temperature 1 and no filters unless `rule` says otherwise; one coin stands for all nodes."""
    drawn = coin if isinstance(coin, list) else [coin] * len(tree.parents)
    settled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "threshold_single": 1.0, "threshold_acc": 1.0}
    verdict = verify_tree(
        logits, *tree.arrays(), coins=torch.tensor(drawn), final_coin=final, **(settled | rule)
    )
    assert verdict is not None
    return verdict


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.sampled_from([2, 3, 5, 17, 32, 40]))
    tree = draw(trees(size))
    # Eighths up to 8 are exact in every dtype and differ by more than float32's rounding.
    row = st.lists(st.one_of(st.integers(-64, 64), st.none()), min_size=size, max_size=size)
    grid = draw(st.lists(row.filter(any_finite), min_size=len(tree.parents), max_size=len(tree.parents)))
    coin = st.integers(0, 2**24 - 1).map(lambda n: n * 2.0**-24)
    return {
        "tree": tree,
        "rows": [[-math.inf if n is None else n / 8 for n in row] for row in grid],
        "coins": draw(st.lists(coin, min_size=len(tree.parents), max_size=len(tree.parents))),
        "final": draw(coin),
        "rule": {
            "temperature": draw(st.sampled_from([0.0, 0.25, 0.7, 1.0, 1.5, 5.0])),
            "top_k": draw(st.integers(0, size + 1)),
            "top_p": draw(st.sampled_from([1.0, 0.95, 0.5, 0.123, 1e-6])),
        },
        "thresholds": {
            "threshold_single": draw(st.sampled_from([1.0, 1.0, 0.4, 0.0])),
            "threshold_acc": draw(st.sampled_from([1.0, 1.0, 0.6, 0.0])),
        },
    }


def any_finite(row: list[int | None]) -> bool:
    return any(value is not None for value in row)
