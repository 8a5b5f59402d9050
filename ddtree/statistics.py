"""Acceptance and stage times of many steps, pooled: counters over trace steps that add up.

Counters follow what was committed: a path is cut after the first stop token and at max_new_tokens, and what
lies beyond the cut was neither reached nor accepted. The i-th committed token is the decision made at the
i-th node of the walk, so the nodes whose decision counts are `accept_index[:len(committed)]`. Rates pool
counters over steps; they are never a mean of ratios.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest

from ddtree.trace import Step

STAGES = ("draft", "build", "encode", "verify", "sample", "commit", "other")

Row = tuple[int, ...]
Cells = tuple[Row, ...]
"""Counts by depth (row d - 1) and rank (column); rows end with their last proposed rank."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often drafts of one kind were accepted. Rates are None where they divide by zero."""

    reached: int  # the walk stood where such a draft could have been accepted
    accepted: int
    steps: int

    @property
    def conditional(self) -> float | None:
        """Accepted of the times it was reached."""
        return _ratio(self.accepted, self.reached)

    @property
    def unconditional(self) -> float | None:
        """Accepted of all steps."""
        return _ratio(self.accepted, self.steps)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of a set of steps; `a + b` are those of both sets. Failed steps are not counted."""

    steps: int = 0
    committed: int = 0  # accepted drafts and bonus tokens
    accepted_drafts: int = 0
    nodes: int = 0  # of the trees, roots not counted
    positions: int = 0  # depths drafted: the sum of the trees' depths
    depth_reached: Row = ()  # [d - 1]: steps whose walk stood on a node of depth d - 1, a leaf or not
    depth_accepted: Row = ()  # [d - 1]: steps that accepted a node of depth d
    proposed: Cells = ()  # nodes of the trees
    reached: Cells = ()  # nodes whose parent the walk stood on
    accepted: Cells = ()
    stage_ms: Mapping[str, float] = field(default_factory=dict)  # sums by STAGES and "total"

    def __add__(self, other: Statistics) -> Statistics:
        stages = {**self.stage_ms}
        for stage, spent in other.stage_ms.items():
            stages[stage] = stages.get(stage, 0.0) + spent
        return Statistics(
            steps=self.steps + other.steps,
            committed=self.committed + other.committed,
            accepted_drafts=self.accepted_drafts + other.accepted_drafts,
            nodes=self.nodes + other.nodes,
            positions=self.positions + other.positions,
            depth_reached=_add_rows(self.depth_reached, other.depth_reached),
            depth_accepted=_add_rows(self.depth_accepted, other.depth_accepted),
            proposed=_add_cells(self.proposed, other.proposed),
            reached=_add_cells(self.reached, other.reached),
            accepted=_add_cells(self.accepted, other.accepted),
            stage_ms=stages,
        )

    @property
    def tau(self) -> float | None:
        """Committed tokens a step, bonus included."""
        return _ratio(self.committed, self.steps)

    @property
    def accepted_depth(self) -> float | None:
        """Accepted drafts a step: how deep the walk got."""
        return _ratio(self.accepted_drafts, self.steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts of the drafted positions: of 15 positions and 3 accepted, .20."""
        return _ratio(self.accepted_drafts, self.positions)

    @property
    def node_efficiency(self) -> float | None:
        """Accepted drafts of the trees' nodes; not an acceptance rate: siblings exclude each other."""
        return _ratio(self.accepted_drafts, self.nodes)

    def by_depth(self) -> list[Acceptance]:
        """Of each depth from 1 that was drafted. Unconditional rates add up to `accepted_depth`; with reached
        steps those that drafted nothing at this depth are counted, too."""
        reached = _add_rows(self.depth_reached, (0,) * len(self.depth_accepted))
        pairs = zip(reached, self.depth_accepted, strict=False)
        return [Acceptance(stood, accepted, self.steps) for stood, accepted in pairs]

    def by_rank(self) -> list[Acceptance]:
        """Of each rank from 0, all depths together."""
        reached: Row = reduce(_add_rows, self.reached, ())
        accepted: Row = reduce(_add_rows, self.accepted, ())
        return [Acceptance(r, a, self.steps) for r, a in zip(reached, accepted, strict=True)]

    def by_depth_and_rank(self) -> list[list[Acceptance]]:
        """[d - 1][rank], for every cell in which a node was proposed."""
        return [
            [Acceptance(r, a, self.steps) for r, a in zip(*rows, strict=True)]
            for rows in zip(self.reached, self.accepted, strict=True)
        ]

    def stage_means(self) -> dict[str, float]:
        """Milliseconds a step of every stage that was timed, and "total"."""
        return {stage: spent / self.steps for stage, spent in self.stage_ms.items()} if self.steps else {}


def step_statistics(step: Step) -> Statistics:
    """The counters of one step; none of them where it failed."""
    if step.tree is None or step.accept is None or step.committed is None:
        return Statistics()
    tree, committed = step.tree, len(step.committed.token_ids)
    walked = step.accept.accept_index[:committed]  # the nodes whose decision counts
    accepted = step.accept.accept_index[1 : committed + 1]
    deepest = max(tree.depths, default=0)
    nodes = range(1, len(tree.parents))
    standing = set(walked)
    stages = step.timing_ms.model_dump(exclude_none=True) if step.timing_ms is not None else {}
    return Statistics(
        steps=1,
        committed=committed,
        accepted_drafts=len(accepted),
        nodes=len(tree.depths),
        positions=deepest,
        depth_reached=(1,) * len(walked),
        depth_accepted=tuple(int(depth < len(accepted)) for depth in range(deepest)),
        proposed=_cells(step, nodes, nodes),
        reached=_cells(step, nodes, (node for node in nodes if tree.parents[node] in standing)),
        accepted=_cells(step, nodes, accepted),
        stage_ms=stages,
    )


def pooled(parts: Iterable[Statistics]) -> Statistics:
    """The counters of all parts together."""
    return sum(parts, Statistics())


def run_statistics(steps: Iterable[Step]) -> Statistics:
    """The counters of all steps together."""
    return pooled(step_statistics(step) for step in steps)


def _cells(step: Step, proposed: Iterable[int], counted: Iterable[int]) -> Cells:
    """Counts of nodes by depth and rank, in the shape of the proposed ones."""
    assert step.tree is not None
    depths, ranks = step.tree.depths, step.tree.ranks
    widths = [0] * max(depths, default=0)
    for node in proposed:
        depth = depths[node - 1] - 1
        widths[depth] = max(widths[depth], ranks[node - 1] + 1)
    cells = [[0] * width for width in widths]
    for node in counted:
        cells[depths[node - 1] - 1][ranks[node - 1]] += 1
    return tuple(map(tuple, cells))


def _add_rows(one: Row, other: Row) -> Row:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def _add_cells(one: Cells, other: Cells) -> Cells:
    return tuple(_add_rows(a, b) for a, b in zip_longest(one, other, fillvalue=()))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
