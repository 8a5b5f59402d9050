"""The evaluate stage: how many drafts a step accepts, by replay along texts that training never saw.

A text is what the target sampled, so a step of live decoding that starts at one of its tokens would commit
the text's next ones: the accepted drafts are those nodes of the step's tree that the text walks through, and
the next root is the token behind them. At temperature 0 this is live decoding's own count, above it equal in
law, since the sampler commits exact samples of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ddtree.drafters.base import Context
from ddtree.storage import Progress
from ddtree.training.features import FeatureCache
from ddtree.tree import DraftTree, build_ddtree_tree

CANDIDATES = 32
"""Entries of a candidate row, as many as live decoding takes for budgets up to it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to make a tree of a draft."""

    method: str  # chain or ddtree
    budget: int

    def __str__(self) -> str:
        return "chain" if self.method == "chain" else f"ddtree {self.budget}"


@dataclass(slots=True)
class Tally:
    """Counted over steps."""

    steps: int = 0
    accepted_drafts: int = 0
    reached: list[int] = field(default_factory=list)  # steps that accepted at least 1, 2, ... drafts

    def add(self, accepted: int) -> None:
        self.steps += 1
        self.accepted_drafts += accepted
        self.reached += [0] * (accepted - len(self.reached))
        for depth in range(accepted):
            self.reached[depth] += 1

    @property
    def per_step(self) -> float:
        return self.accepted_drafts / self.steps if self.steps else 0.0


def replay(
    drafter: Any, token_ids: Sequence[int], start: int, features: torch.Tensor, shapes: Sequence[Shape]
) -> dict[Shape, Tally]:
    """The tallies of decoding this text's answer with each of `shapes`.

    token_ids: prompt and answer; start: tokens of the prompt; features [n, taps * H], in the target's dtype,
    the rows of all tokens but the last. Each root is drafted once, whatever shapes come to it.
    """
    state = drafter.new_state(len(token_ids))
    budgets: dict[str, int] = {}
    for shape in shapes:
        budgets[shape.method] = max(shape.budget, budgets.get(shape.method, 0))
    tallies = {shape: Tally() for shape in shapes}
    roots = dict.fromkeys(shapes, start - 1)
    while (root := min(roots.values())) < len(token_ids) - 1:
        draft = drafter.draft(
            state,
            Context(token_ids[: root + 1], features),
            block_size=drafter.block_size,
            candidates=CANDIDATES,
            temperature=1.0,
        )
        trees = {method: _tree(draft, method, budget) for method, budget in budgets.items()}
        for shape in [shape for shape, at in roots.items() if at == root]:
            accepted = walk(trees[shape.method], shape.budget, token_ids[root + 1 :])
            tallies[shape].add(accepted)
            roots[shape] = root + accepted + 1
    return tallies


def _tree(draft: Any, method: str, budget: int) -> DraftTree:
    width = 1 if method == "chain" else draft.top_log_probs.shape[1]
    children = None if draft.child_rows is None else draft.child_rows[:, :width]
    return build_ddtree_tree(draft.top_log_probs[:, :width], draft.top_token_ids[:, :width], children, budget)


def walk(tree: DraftTree, budget: int, text: Sequence[int]) -> int:
    """How many of the first `budget` nodes the text goes through, from the root on: the tree of a budget is
    the beginning of every larger one."""
    nodes = min(tree.num_nodes, budget)
    parents, tokens = tree.parents.tolist(), tree.token_ids.tolist()
    node = accepted = 0
    for child in range(1, nodes + 1):  # a child stands behind its parent
        if accepted < len(text) and parents[child] == node and tokens[child - 1] == text[accepted]:
            node = child
            accepted += 1
    return accepted


def evaluate(
    drafter: Any,
    cache: FeatureCache,
    documents: Sequence[int],
    shapes: Sequence[Shape],
    dtype: torch.dtype,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> dict[float, dict[Shape, Tally]]:
    """The tallies of `documents`, pooled over those of one temperature."""
    pooled: dict[float, dict[Shape, Tally]] = {}
    for number, document in enumerate(documents):
        if should_stop():
            break
        progress("evaluating", number / len(documents))
        temperature = round(float(cache.temperatures[document]), 3)
        found = replay(
            drafter,
            cache.tokens(document).tolist(),
            int(cache.starts[document]),
            _tapped(cache, document, drafter.taps).to(dtype),
            shapes,
        )
        totals = pooled.setdefault(temperature, {shape: Tally() for shape in shapes})
        for shape, tally in found.items():
            _pool(totals[shape], tally)
    return dict(sorted(pooled.items()))


def _pool(total: Tally, part: Tally) -> None:
    total.steps += part.steps
    total.accepted_drafts += part.accepted_drafts
    total.reached += [0] * (len(part.reached) - len(total.reached))
    for depth, count in enumerate(part.reached):
        total.reached[depth] += count


def _tapped(cache: FeatureCache, document: int, taps: Sequence[int]) -> torch.Tensor:
    """[n, taps * H] of the drafter's taps. Raises ValueError when the cache lacks one of them."""
    missing = [tap for tap in taps if tap not in cache.taps]
    if missing:
        raise ValueError(
            f"the drafter reads layers {missing}, which {cache.folder} does not hold; it has "
            f"{list(cache.taps)}: make the features with --taps"
        )
    rows = cache.features(document).view(-1, len(cache.taps), cache.hidden_size)
    return rows[:, [cache.taps.index(tap) for tap in taps]].flatten(1)
