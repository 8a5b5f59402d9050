"""The evaluate stage: how many drafts a step accepts, by replay along texts that training never saw.

A text is what the target sampled, so a step of live decoding that starts at one of its tokens would commit
the text's next ones: the accepted drafts are those nodes of the step's tree that the text walks through, and
the next root is the token behind them. At temperature 0 this is live decoding's own count, above it equal in
law, since the sampler commits exact samples of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ddtree.storage import Progress
from ddtree.training.features import FeatureCache
from ddtree.training.reader import Reader
from ddtree.tree import DraftTree, build_ddtree_tree_from_topk


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
    reader: Reader, token_ids: Sequence[int], start: int, features: torch.Tensor, shapes: Sequence[Shape]
) -> dict[Shape, Tally]:
    """The tallies of decoding this text's answer with each of `shapes`.

    token_ids: prompt and answer; start: tokens of the prompt; features [n, taps * H], the rows of all tokens
    but the last.
    """
    first, last = start - 1, len(token_ids) - 1
    log_probs, ids = reader.rows(torch.tensor(token_ids), torch.arange(first, last), features)
    tallies = {}
    for shape in shapes:
        tally = tallies[shape] = Tally()
        width = 1 if shape.method == "chain" else log_probs.shape[2]
        root = first
        while root < last:
            rows = log_probs[root - first, :, :width], ids[root - first, :, :width]
            accepted = walk(build_ddtree_tree_from_topk(*rows, shape.budget), token_ids[root + 1 :])
            tally.add(accepted)
            root += accepted + 1
    return tallies


def walk(tree: DraftTree, text: Sequence[int]) -> int:
    """How many nodes the text goes through, from the root on."""
    parents, tokens = tree.parents.tolist(), tree.token_ids.tolist()
    node = accepted = 0
    for child in range(1, tree.num_nodes + 1):  # a child stands behind its parent
        if accepted < len(text) and parents[child] == node and tokens[child - 1] == text[accepted]:
            node = child
            accepted += 1
    return accepted


def evaluate(
    reader: Reader,
    cache: FeatureCache,
    documents: Sequence[int],
    shapes: Sequence[Shape],
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
            reader,
            cache.tokens(document).tolist(),
            int(cache.starts[document]),
            _tapped(cache, document, reader.model.config.target_layer_ids),
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
