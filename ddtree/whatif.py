"""What a smaller budget would have given in the same contexts, without running again.

Best-first trees are nested (DDTree, arXiv 2604.12989): the tree of budget b is the first b nodes of the one
that was drafted. Siblings are tried in the order of their numbers and coins belong to nodes, so the accepted
path for b is the recorded one cut at its first node beyond b, at any temperature and threshold. Only the
bonus token may differ. It is an estimate of a run with that budget: such a run would have met other contexts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddtree.trace import Step

LEAST_TIMED = 3
"""Steps of a row count from which their mean time is taken as measured."""

Stair = Mapping[int, float]
"""Mean measured milliseconds of a step by the rows of its target pass."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step in its own context, with a smaller budget."""

    path: list[int]  # the walk's nodes, root first
    bonus_token_id: int | None  # None: it would be drawn from a row that the trace does not have
    accepted_drafts: int  # counted: a stop token or the limit cuts them as they cut the step
    emitted: int  # committed tokens, the bonus included


def budget_of(step: Step) -> int | None:
    """The budget the step was drafted with, 0 where nothing was drafted; None where it failed."""
    if step.tree is None or step.accept is None or step.committed is None:
        return None
    return 0 if step.draft is None else step.budget


def with_budget(step: Step, budget: int) -> Outcome:
    """The step with `budget` nodes at most. Raises ValueError for a failed step, and for a budget that is
    negative or larger than the step's own: what lies beyond its tree was not scored."""
    drafted = budget_of(step)
    if drafted is None:
        raise ValueError(f"step {step.index} failed: it has no walk to cut")
    if not 0 <= budget <= drafted:
        raise ValueError(f"budget is {budget}; step {step.index} can tell of 0 to {drafted}")
    return _cut(step, budget, _last_children(step))


def _cut(step: Step, budget: int, last_children: Mapping[int, int]) -> Outcome:
    assert step.accept is not None and step.committed is not None
    recorded, committed = step.accept.accept_index, len(step.committed.token_ids)
    kept = next((i for i, node in enumerate(recorded) if node > budget), len(recorded))
    return Outcome(
        recorded[:kept],
        _bonus(step, budget, kept, last_children),
        accepted_drafts=min(kept - 1, committed),
        emitted=min(kept, committed),
    )


def _bonus(step: Step, budget: int, kept: int, last_children: Mapping[int, int]) -> int | None:
    """The token after the first `kept` nodes of the path. Greedy, it is the target's choice there, which the
    path goes on with or ends at; sampled, it is known when the last node has lost no child."""
    assert step.tree is not None and step.accept is not None
    path = step.accept.accept_index
    greedy = step.sampling is not None and step.sampling.rule == "greedy"
    if greedy and kept < len(path):
        return step.tree.token_ids[path[kept] - 1]
    lost = last_children.get(path[kept - 1], 0) > budget
    return None if lost and not greedy else step.accept.bonus_token_id


def _last_children(step: Step) -> dict[int, int]:
    """Of each node that has children the one with the largest number, which a smaller budget loses first."""
    assert step.tree is not None
    return {parent: node for node, parent in enumerate(step.tree.parents)}


# ---- over many steps ----


@dataclass(frozen=True, slots=True)
class Point:
    """All contexts of a curve at one budget."""

    budget: int
    accepted_drafts: int
    emitted: int
    bonus_unknown: int  # steps whose bonus token would be another draw
    ms: float | None  # of all these steps; None where one was not timed


@dataclass(frozen=True, slots=True)
class RowTime:
    """Steps whose target pass had as many rows (nodes and root); means, in milliseconds."""

    source: str | None  # the drafter's; None: nothing was drafted
    rows: int
    steps: int
    draft: float | None
    verify: float | None
    total: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What each budget from 0 to the largest point's gives in one set of contexts."""

    steps: int  # contexts: the steps drafted with the last point's budget or more
    left_out: int  # steps of smaller budgets, which cannot tell of all points
    auto: int  # contexts whose budget was chosen ("auto"): more nodes where more were promised
    points: list[Point]
    times: list[RowTime]
    measured: list[int]  # budgets that LEAST_TIMED steps or more were timed at

    def emitted(self, point: Point) -> float | None:
        """Committed tokens a step."""
        return point.emitted / self.steps if self.steps else None

    @staticmethod
    def tokens_per_second(point: Point) -> float | None:
        return point.emitted / point.ms * 1e3 if point.ms else None

    @property
    def best(self) -> int | None:
        """The budget of most tokens/s, the smaller among equals. None where fewer than two budgets were
        measured: a smaller one is then charged the time of the only one, and cannot win."""
        speeds = [(self.tokens_per_second(point), -point.budget) for point in self.points]
        known = [(speed, budget) for speed, budget in speeds if speed is not None]
        return -max(known)[1] if known and len(self.measured) > 1 else None


def budget_curve(steps: Iterable[Step], timed: Iterable[Step]) -> Curve:
    """The curve over `steps`, with the times of `timed` (the whole run, of which `steps` may be a part).

    It reaches to the largest budget that half of the steps were drafted with. Times are a staircase in the
    rows of the target's pass, never a line: each step is charged the mean of the smallest row count that
    holds its tree and that LEAST_TIMED steps or more of its drafter had; where there is none up to its own
    rows, its own time, which is an upper bound.
    """
    whole = [(step, budget) for step in steps if (budget := budget_of(step)) is not None]
    budgets = sorted((budget for _, budget in whole), reverse=True)
    reach = budgets[(len(budgets) - 1) // 2] if budgets else -1
    contexts = [(step, _last_children(step)) for step, budget in whole if budget >= reach]
    times, measured = _row_times(timed)
    stairs: dict[str | None, dict[int, float]] = defaultdict(dict)
    for time in times:
        if time.steps >= LEAST_TIMED:
            stairs[time.source][time.rows] = time.total
    points = [_point(contexts, budget, stairs) for budget in range(reach + 1)]
    auto = sum(step.auto is not None for step, _ in contexts)
    return Curve(len(contexts), len(whole) - len(contexts), auto, points, times, measured)


def _point(
    contexts: Sequence[tuple[Step, Mapping[int, int]]], budget: int, stairs: Mapping[str | None, Stair]
) -> Point:
    outcomes = [_cut(step, budget, last_children) for step, last_children in contexts]
    costs = [_cost(step, budget, stairs) for step, _ in contexts]
    known = [cost for cost in costs if cost is not None]
    return Point(
        budget,
        accepted_drafts=sum(outcome.accepted_drafts for outcome in outcomes),
        emitted=sum(outcome.emitted for outcome in outcomes),
        bonus_unknown=sum(outcome.bonus_token_id is None for outcome in outcomes),
        ms=sum(known) if len(known) == len(costs) else None,
    )


def _cost(step: Step, budget: int, stairs: Mapping[str | None, Stair]) -> float | None:
    """Milliseconds of the step with that budget; None where it was not timed."""
    if step.timing_ms is None:
        return None
    rows = _rows(step)
    undrafted = stairs.get(None, {})
    if budget == 0 and 1 in undrafted:
        return undrafted[1]
    stair = stairs.get(_source(step), {})
    enough = [count for count in stair if min(budget + 1, rows) <= count <= rows]
    return stair[min(enough)] if enough else step.timing_ms.total


def _row_times(steps: Iterable[Step]) -> tuple[list[RowTime], list[int]]:
    groups: dict[tuple[str | None, int], list[Step]] = defaultdict(list)
    timed: Counter[int] = Counter()
    for step in steps:
        budget = budget_of(step)
        if budget is not None and step.timing_ms is not None:
            groups[_source(step), _rows(step)].append(step)
            timed[budget] += 1
    order = sorted(groups, key=lambda group: (group[0] or "", group[1]))
    return [_row_time(*group, groups[group]) for group in order], sorted(
        budget for budget, count in timed.items() if count >= LEAST_TIMED
    )


def _row_time(source: str | None, rows: int, steps: Sequence[Step]) -> RowTime:
    timings = [step.timing_ms for step in steps if step.timing_ms is not None]
    draft = [timing.draft for timing in timings if timing.draft is not None]
    verify = [timing.verify for timing in timings if timing.verify is not None]
    return RowTime(
        source,
        rows,
        len(timings),
        draft=fmean(draft) if draft else None,
        verify=fmean(verify) if verify else None,
        total=fmean(timing.total for timing in timings),
    )


def _rows(step: Step) -> int:
    return len(step.tree.parents) if step.tree is not None else 1


def _source(step: Step) -> str | None:
    return None if step.draft is None else step.draft.source
