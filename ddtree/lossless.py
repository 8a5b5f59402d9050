"""Is it lossless? A step checked at its own place in its run, in three parts.

- The sampler against the rows it was given: many walks of the step's tree with coins of their own; the first
  token, and the second after the likeliest child, against the target's rows, which are turned into
  distributions in float64 by transformers' rule and not by the sampler's kernel.
- Those rows, scored in one pass with the whole tree, against plain passes of one row: any
  difference is rounding.
- Greedy steps have no draws: the tokens that were committed, here and after, against plain decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from ddtree.goodness import Fit, fit
from ddtree.kvcache import TargetCache
from ddtree.retrieve import compile_ddtree_retrieve
from ddtree.sampling import coins, verify_tree
from ddtree.settings import Settings
from ddtree.target import Target
from ddtree.trace import Step
from ddtree.tree import DraftTree

MOST_COMPARED = 64
"""Greedy tokens that are decoded again plainly."""

_SLICE_S = 0.03
"""Draws go on for so long before others have their turn."""

Draw = Callable[[torch.Tensor, float], Sequence[int]]
"""A walk: (a coin for each node, the final coin) -> the tokens it commits, bonus included."""

Phase = Literal["context", "rows", "draws", "plain"]


class NotCheckable(ValueError):
    """The step cannot be checked; the message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SamplerFit:
    """`after` is the child whose successor was counted, None: the first token. `left_out`: draws that did
    not go there."""

    after: int | None
    left_out: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row of the tree's pass against the same row of a plain pass, as distributions sampled from."""

    node: int
    largest: float  # difference of a probability
    token_id: int  # where
    total_variation: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy run's tokens part from plain decoding; margin: by how much the plain row's largest logit
    is above the committed token's."""

    place: int
    committed: int
    plain: int
    margin: float


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    compared: int
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Verdict:
    draws: int
    seed: int
    sampler: list[SamplerFit]
    rows: list[RowDifference]
    greedy: GreedyComparison | None


def check_checkable(step: Step) -> None:
    """Raises NotCheckable for a lossy step, and for one that has no tree to walk."""
    s = step.settings
    if s.lossy and not s.greedy:
        raise NotCheckable(
            f"step {step.index} was sampled with thresholds below 1 (single {s.threshold_single:g}, "
            f"accumulated {s.threshold_acc:g}), which accept more than the target would: it is lossy by "
            "design, so there is nothing to check"
        )
    if step.error is not None or step.committed is None or step.tree is None:
        raise NotCheckable(f"step {step.index} failed, so there is no walk to check: choose another step")


def check_step(
    target: Target, context: Sequence[int], step: Step, following: Sequence[int], draws: int, seed: int
) -> Iterator[Progress | Verdict]:
    """Check `step`, whose root is the last of `context`; yields progress, in the end the verdict.

    `following` are the tokens committed by this step and, while they are greedy too, the next ones. Each turn
    of the iterator is short (a chunk of the prompt, a pass, 30 ms of draws): runs can decode in between.
    Raises NotCheckable, and ValueError for a target that cannot score it.
    """
    check_checkable(step)
    check = _Check(target, context, step)
    yield from check.prefill()
    logits = check.score_tree()
    yield Progress("rows", 1, 3)
    rows = []
    for done, difference in enumerate(check.row_differences(logits), 2):
        rows.append(difference)
        yield Progress("rows", done, 3)
    fits, greedy = [], None
    if step.settings.greedy:
        for found in check.compare_greedy(following[:MOST_COMPARED]):
            if isinstance(found, Progress):
                yield found
            else:
                greedy = found
    else:
        counted = Counted(check.token_ids, logits.shape[1], check.likeliest(logits))
        walk = check.walk(logits)
        yield from draw(walk, counted, len(check.parents), draws, seed)
        fits = counted.fits(lambda node: check.distribution(logits[node]))
    yield Verdict(0 if greedy else draws, seed, fits, rows, greedy)


class Counted:
    """What was drawn: first tokens, and those after one child of the root."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int, after: int | None) -> None:
        """token_ids of the nodes below the root; after: the root's child whose successors are counted."""
        self._after = after
        self._token = None if after is None else token_ids[after - 1]
        self._first = torch.zeros(vocab_size, dtype=torch.int64)
        self._second = torch.zeros(vocab_size, dtype=torch.int64)

    def add(self, tokens: Sequence[int]) -> None:
        self._first[tokens[0]] += 1
        if tokens[0] == self._token and len(tokens) > 1:
            self._second[tokens[1]] += 1

    def fits(self, distribution: Callable[[int], torch.Tensor]) -> list[SamplerFit]:
        """distribution(node): float64 [V] of the node's row."""
        found = [SamplerFit(None, 0, fit(self._first, distribution(0)))]
        if self._after is not None and int(self._second.sum()):
            left_out = int(self._first.sum() - self._second.sum())
            found.append(SamplerFit(self._after, left_out, fit(self._second, distribution(self._after))))
        return found


def draw(walk: Draw, counted: Counted, nodes: int, draws: int, seed: int) -> Iterator[Progress]:
    """`draws` walks, the i-th with the coins of (seed, step i); their number is fixed beforehand."""
    began = time.perf_counter()
    for i in range(draws):
        counted.add(walk(*coins(seed, i, nodes)))
        if time.perf_counter() - began > _SLICE_S:
            yield Progress("draws", i + 1, draws)
            began = time.perf_counter()
    yield Progress("draws", draws, draws)


def distribution(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """float64 [V] of one row: temperature, then top-k (all equal to the k-th stay), top-p on the rest (by
    probability descending, then id; the shortest prefix that reaches it), as transformers' warpers."""
    scaled = logits.double() / temperature
    if 0 < top_k < len(scaled):
        scaled[scaled < torch.topk(scaled, top_k).values[-1]] = float("-inf")
    probs = torch.softmax(scaled, dim=0)
    if top_p < 1:
        order = torch.argsort(probs, descending=True, stable=True)
        sorted_probs = probs[order]
        before = sorted_probs.cumsum(0) - sorted_probs
        probs[order[before >= top_p]] = 0
        probs /= probs.sum()
    return probs


class _Check:
    """One step scored anew: its context in a cache of its own, its tree in one pass."""

    def __init__(self, target: Target, context: Sequence[int], step: Step) -> None:
        assert step.tree is not None
        self.target, self.settings = target, step.settings
        self.context = list(context)
        self.token_ids = list(step.tree.token_ids)
        self.parents = list(step.tree.parents)
        self.children = [node for node, parent in enumerate(self.parents) if parent == 0]
        self._tree = DraftTree.from_parents(self.parents, self.token_ids)
        self._arrays = compile_ddtree_retrieve(self._tree)
        rows = max(len(self.parents), MOST_COMPARED + 2)
        self._cache: TargetCache = target.new_cache(len(self.context) + rows)
        self._candidates = torch.tensor([self.context[-1], *self.token_ids])

    def prefill(self) -> Iterator[Progress]:
        head = self.context[:-1]
        for done in self.target.prefill(self._cache, head) if head else ():
            yield Progress("context", done, len(head))

    @torch.inference_mode()
    def score_tree(self) -> torch.Tensor:
        """Logits [n, V] of the root and the nodes, in one pass."""
        positions = torch.zeros(len(self.parents), dtype=torch.int64)
        positions[1:] = self._tree.depths
        return self._pass(self._candidates, positions + len(self.context) - 1, self._tree.visibility())

    def _pass(
        self, token_ids: torch.Tensor, positions: torch.Tensor, visibility: torch.Tensor
    ) -> torch.Tensor:
        native = self.target.native
        device = self.target.device
        with nullcontext() if native is None else native.alone():
            return self.target.verify(
                self._cache, token_ids.to(device), positions.to(device), visibility.to(device)
            ).cpu()

    @torch.inference_mode()
    def _plain(self, token_id: int, keep: bool = True) -> torch.Tensor:
        """Logits [V] after the cache's tokens and this one, in a pass of one row, which is kept if asked."""
        at = torch.tensor([self._cache.length])
        row = self._pass(torch.tensor([token_id]), at, torch.ones(1, 1, dtype=torch.bool))[0]
        if keep:
            self.target.commit(self._cache, [0])
        return row

    def row_differences(self, logits: torch.Tensor) -> Iterator[RowDifference]:
        """The root's row and that of its likeliest child; the tree's rows are forgotten, the root kept."""
        self._root_row = self._plain(self.context[-1])
        yield self._difference(0, logits[0], self._root_row)
        child = self.likeliest(logits)
        if child is not None:
            yield self._difference(child, logits[child], self._plain(self.token_ids[child - 1], keep=False))

    def _difference(self, node: int, row: torch.Tensor, plain: torch.Tensor) -> RowDifference:
        apart = (self.distribution(row) - self.distribution(plain)).abs()
        token_id = int(apart.argmax())
        return RowDifference(node, float(apart[token_id]), token_id, float(apart.sum() / 2))

    def distribution(self, row: torch.Tensor) -> torch.Tensor:
        """What is sampled from; of a greedy step, the target's own at temperature 1."""
        if self.settings.greedy:
            return distribution(row, 1.0, 0, 1.0)
        return distribution(row, self.settings.temperature, self.settings.top_k, self.settings.top_p)

    def likeliest(self, logits: torch.Tensor) -> int | None:
        """The root's child that the target likes best: known before anything is drawn."""
        if not self.children:
            return None
        probs = self.distribution(logits[0])
        return max(self.children, key=lambda node: (float(probs[self.token_ids[node - 1]]), -node))

    def walk(self, logits: torch.Tensor) -> Draw:
        rule: Settings = self.settings

        def walked(uniform: torch.Tensor, final: float) -> Sequence[int]:
            verdict = verify_tree(
                logits,
                self._candidates,
                self._arrays.retrieve_next_token,
                self._arrays.retrieve_next_sibling,
                temperature=rule.temperature,
                top_k=rule.top_k,
                top_p=rule.top_p,
                coins=uniform,
                final_coin=final,
                threshold_single=1.0,
                threshold_acc=1.0,
            )
            path = [self.token_ids[node - 1] for node in verdict.accept_index[1:]]
            return [*path, verdict.bonus_token_id]

        return walked

    def compare_greedy(self, tokens: Sequence[int]) -> Iterator[Progress | GreedyComparison]:
        """Each token against the argmax of a plain pass (the lowest id among equals) over those before it;
        after `row_differences`, which scored and kept the root."""
        for place, token_id in enumerate(tokens):
            row = self._plain(tokens[place - 1]) if place else self._root_row
            best = int(row.argmax())
            if best != token_id:
                margin = float(row[best].float() - row[token_id].float())
                yield GreedyComparison(place, Difference(place, token_id, best, margin))
                return
            yield Progress("plain", place + 1, len(tokens))
        yield GreedyComparison(len(tokens), None)
