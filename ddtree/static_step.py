"""A whole step as one sequence of device work whose shapes are known before: draft, top-k, build, encode,
mask, target forward, sample, commit.

Root, length, step and seed of a run are tensors; the cache and the drafter's context rows are preallocated
and compacted with indices that the device computes. Nothing here asks the device for a value, so a sequence
can be launched while the one before it runs, and captured in a CUDA graph (`ddtree.graphs`). What the host
wants to know of a step stands in its `StepOutput`.

A `Plan` fixes the shapes and the sampling rule. The budget is a tensor: a tree is the beginning of every
larger one, so a plan builds the largest tree of its rows and cuts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ddtree import ops
from ddtree.drafters.base import DRAFT_TEMPERATURE, candidates_for
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.drafters.dflash_static import StaticDFlash
from ddtree.kvcache import TargetCache
from ddtree.philox import PhiloxCoins, as_int64
from ddtree.settings import Settings
from ddtree.target import Target

BUCKETS = (1, 8, 16, 32, 64, 128, 256)
"""Rows of a padded pass, the root included. Larger trees have as many rows as they need."""

_NOT_IN_TREE = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be known before a step is launched, and is the same for every replay of its graph."""

    rows: int  # of the target's pass, root included
    depth: int  # drafted positions; 0: nothing is drafted, and the pass has one row
    width: int  # candidates of each position
    chain: bool  # only the likeliest candidate of each position is put into the tree
    rule: tuple[float, int, float]  # temperature, top_k, top_p
    thresholds: tuple[float, float]  # single, acc

    @property
    def path_rows(self) -> int:
        """Rows of the longest path, the root included."""
        return min(self.depth, self.rows - 1) + 1


def plan_step(settings: Settings, vocab_size: int, padded: bool) -> tuple[Plan, int]:
    """(the plan of a step under resolved settings, its tree's budget). Padded: in the smallest bucket that
    holds it."""
    assert settings.block_size is not None
    depth = settings.block_size - 1
    assert settings.budget != "auto"
    budget = min(settings.budget, depth) if settings.method == "chain" else settings.budget
    if settings.method == "autoregressive" or depth == 0:
        budget = 0
    rows = budget + 1
    if padded:
        rows = next((bucket for bucket in BUCKETS if rows <= bucket), rows)
    greedy = settings.greedy  # thresholds change nothing then: each probability is 0 or 1
    plan = Plan(
        rows=rows,
        depth=depth if budget else 0,
        width=candidates_for(rows - 1, vocab_size) if budget else 0,
        chain=settings.method == "chain",
        rule=(0.0, 0, 1.0) if greedy else (settings.temperature, settings.top_k, settings.top_p),
        thresholds=(1.0, 1.0) if greedy else (settings.threshold_single, settings.threshold_acc),
    )
    return plan, budget


class StepOutput(NamedTuple):
    """What a step leaves for the host: n rows, L = depth, K = width, P = path_rows, V tokens."""

    log_probs: torch.Tensor  # float32 [L, K], the drafter's candidates
    token_ids: torch.Tensor  # int64 [L, K]
    fields: torch.Tensor  # int64 [6, n], `ddtree.padded.PaddedTrees.fields` of the tree
    retrieve: torch.Tensor  # int64 [3, n]
    tree_status: torch.Tensor  # int64 [2]: nodes (0 after a fault), and 0 or 8 * entry + fault
    coins: torch.Tensor  # float32 [n]
    final_coin: torch.Tensor  # float32 [1]
    path: torch.Tensor  # int64 [n]; this and what follows: `ddtree.padded.PaddedVerdicts`
    outcome: torch.Tensor  # int64 [4]
    bonus: torch.Tensor  # float64 [3]
    tried: torch.Tensor  # int64 [n, 2]
    decisions: torch.Tensor  # float64 [n, 3]
    walk_status: torch.Tensor  # int32 [1]
    target_rows: torch.Tensor  # [P, V], the target's logits along the path; what lies past it means nothing
    draft_rows: torch.Tensor  # [L, V], the drafter's logits


Walk = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class StaticState:
    """Where a run is, on the device."""

    def __init__(self, target: Target, drafter: DFlashDrafter, capacity: int) -> None:
        """capacity: rows of the cache, the uncommitted ones of a pass included."""
        self.cache: TargetCache = target.new_cache(capacity, drafter.taps)
        self.drafter = StaticDFlash(drafter, capacity)
        self.root, self.length, self.step, self.seed, self.budget = (
            torch.zeros(1, dtype=torch.int64, device=target.device) for _ in range(5)
        )

    def attach(self, root: int, length: int, step: int, seed: int) -> None:
        """Tells the device where the run is, the drafter's context included."""
        for tensor, value in zip((self.root, self.length, self.step), (root, length, step), strict=True):
            tensor.fill_(value)
        self.seed.fill_(as_int64(seed))
        assert self.cache.features is not None
        self.drafter.catch_up(self.cache.features, length)

    def clear(self) -> None:
        """As if new, for another run: rows left over might hold what is no number."""
        self.cache.clear()
        self.drafter.clear()

    def saved(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What a step changes of the run; rows past the length are nobody's."""
        return [(t, t.clone()) for t in (self.root, self.length, self.step, self.drafter.last)]


class StaticStep:
    """Runs the steps of one state: each call is one step, of which nothing is known when it returns."""

    def __init__(self, target: Target, state: StaticState) -> None:
        self.target = target
        self.state = state
        self._coins: dict[int, PhiloxCoins] = {}

    def prepare(self, plan: Plan) -> None:
        """Makes the constants that a plan needs; they come from the host, which must wait for that."""
        if plan.rows not in self._coins:
            self._coins[plan.rows] = PhiloxCoins(plan.rows, self.target.device)

    @torch.inference_mode()
    def __call__(self, plan: Plan) -> StepOutput:
        """One step of a prepared plan. Never synchronises."""
        log_probs, token_ids, draft_rows = self.draft(plan)
        fields, retrieve, visible, tree_status = self.build(plan, log_probs, token_ids)
        logits, features = self.verify(fields, visible)
        drawn = self.coins(plan)
        walk = self.sample(plan, logits, fields, retrieve, drawn)
        self.commit(plan, walk, features)
        along_path = logits.index_select(0, _path_rows(plan, walk))
        return StepOutput(
            log_probs, token_ids, fields, retrieve, tree_status, *drawn, *walk, along_path, draft_rows
        )

    # ---- the stages ----

    def draft(self, plan: Plan) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(log-probabilities float32 [L, K], ids int64 [L, K], logits [L, V]) of the positions after the
        root."""
        state = self.state
        if plan.depth == 0:
            nothing = torch.zeros(0, 1, dtype=torch.float32, device=self.target.device)
            return nothing, nothing.to(torch.int64), nothing
        logits = state.drafter.draft(state.root, state.length, plan.depth)
        log_probs, token_ids = static_topk(logits, plan.width, DRAFT_TEMPERATURE)
        token_ids, logits = state.drafter.drafter.in_target_ids(token_ids, logits)
        # A block never leaves the target's context: -inf does not enter a tree.
        positions = state.length + torch.arange(1, plan.depth + 1, device=logits.device)
        beyond = (positions >= self.target.max_context)[:, None]
        return log_probs.masked_fill(beyond, -torch.inf), token_ids, logits

    def build(
        self, plan: Plan, log_probs: torch.Tensor, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(fields [6, n], retrieve [3, n], visibility [n, n], status [2]) of the tree cut at the budget, the
        root's token in its place."""
        state = self.state
        if plan.depth == 0:
            fields = state.root.new_full((6, 1), _NOT_IN_TREE)
            retrieve = state.root.new_full((3, 1), _NOT_IN_TREE)
            fields[0], fields[1], retrieve[0] = state.root, 0, 0
            visible = torch.ones(1, 1, dtype=torch.bool, device=fields.device)
            return fields, retrieve, visible, state.root.new_zeros(2)
        width = 1 if plan.chain else log_probs.shape[1]
        rows = (log_probs[None, :, :width].contiguous(), token_ids[None, :, :width].contiguous())
        built = ops.build_trees(*rows, None, plan.rows - 1)
        fields, retrieve, visible, status = (part[0] for part in built)
        nodes = torch.arange(plan.rows, device=fields.device)
        last = torch.minimum(status[:1], state.budget)
        inside = nodes <= last
        fields = torch.where(inside, fields, 0)
        fields[0] = torch.where(nodes == 0, state.root, fields[0])
        pointers = torch.where(inside & (retrieve <= last), retrieve, _NOT_IN_TREE)
        retrieve = torch.cat((retrieve[:1], pointers[1:]))
        root_and_itself = (nodes == 0) | (nodes[:, None] == nodes)
        visible = torch.where(inside[:, None], visible, root_and_itself)
        return fields, retrieve, visible, torch.cat((last, status[1:]))

    def verify(self, fields: torch.Tensor, visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits [n, V], tapped states [n, taps * H]); a step launched past the end may leave the context,
        and nobody reads it."""
        state = self.state
        positions = (state.length + fields[1]).clamp(max=self.target.max_context - 1)
        return self.target.score(state.cache, state.length, fields[0], positions, visible)

    def coins(self, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the nodes, float32 [n], and of the bonus token, float32 [1]."""
        return self._coins[plan.rows](self.state.seed, self.state.step)

    def sample(
        self,
        plan: Plan,
        logits: torch.Tensor,
        fields: torch.Tensor,
        retrieve: torch.Tensor,
        drawn: tuple[torch.Tensor, torch.Tensor],
    ) -> Walk:
        """path, outcome, bonus, tried, decisions, status."""
        coins, final_coin = drawn
        arrays = (fields[:1].contiguous(), retrieve[1:2].contiguous(), retrieve[2:].contiguous())
        walked = ops.verify_trees(
            logits[None], *arrays, coins[None].contiguous(), final_coin, *plan.rule, *plan.thresholds
        )
        path, outcome, bonus, tried, decisions, status = walked
        return path[0], outcome[0], bonus[0], tried[0], decisions[0], status

    def commit(self, plan: Plan, walk: Walk, features: torch.Tensor) -> None:
        """Moves the path's rows to the front in keys, values, features and the drafter's context; the next
        root is the bonus token. After a fault the run stays where it was."""
        _, outcome, _, _, _, status = walk
        rows = _path_rows(plan, walk)
        state = self.state
        kept = state.length + torch.arange(plan.path_rows, device=rows.device)
        state.cache.move(state.length + rows, kept)
        of_path = features.index_select(0, rows)
        assert state.cache.features is not None
        state.cache.features.index_copy_(0, kept, of_path)
        accepted = outcome[:1].clamp(min=0)
        if plan.depth:
            state.drafter.extend(of_path, kept, accepted)
        sound = status == 0
        state.root.copy_(torch.where(sound, outcome[2:3], state.root))
        state.length.add_(torch.where(sound, accepted + 1, 0))
        state.step.add_(1)


def _path_rows(plan: Plan, walk: Walk) -> torch.Tensor:
    """int64 [P]: the path's nodes, behind it the root."""
    return walk[0][: plan.path_rows].clamp(min=0)


def static_topk(logits: torch.Tensor, k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`ddtree.topk.topk_log_softmax` as torch operators: equal logits by lower id, also at the cut. Where
    that raises, the row's log-probabilities are NaN."""
    size = logits.shape[1]
    scaled = logits.to(torch.float32) / temperature + 0.0  # no negative zero
    bits = scaled.view(torch.int32).to(torch.int64)
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    places = torch.arange(size, device=logits.device)
    keys = (ascending << 32) | (size - 1 - places)  # all different: value first, then the lower id
    best = keys.topk(min(k, size), dim=1).values
    token_ids = size - 1 - (best & 0xFFFFFFFF)
    return scaled.log_softmax(-1).gather(1, token_ids), token_ids
