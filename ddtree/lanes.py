"""Runs side by side: what each one's steps add up to, and where two texts part.

Everything comes from recorded steps: time is what was measured inside each run's own steps, so runs that took
turns on one device can be compared, and nothing is decoded again (`ddtree/compare.py` does that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree.statistics import Statistics
from ddtree.trace import Step


@dataclass(frozen=True, slots=True)
class Given:
    """What the target gave the two tokens of a difference in one run's record, at temperature 1; None where
    the record does not hold it."""

    left: float | None
    right: float | None

    @property
    def margin(self) -> float | None:
        """The left token's logit minus the right one's; None unless both probabilities are above 0."""
        if not self.left or not self.right:
            return None
        return math.log(self.left) - math.log(self.right)


@dataclass(frozen=True, slots=True)
class Side:
    """The token a text has at a difference, and the step and place that committed it."""

    token_id: int
    text: str
    step: int
    place: int  # index among the step's committed tokens


@dataclass(frozen=True, slots=True)
class Parting:
    """The first index at which two texts differ; a side is None where its text has ended."""

    index: int
    left: Side | None
    right: Side | None


def tokens_per_second(found: Statistics) -> float | None:
    """Committed tokens by the time measured inside steps; None before the first timed step."""
    spent_ms = found.stage_ms.get("total", 0.0)
    return 1000 * found.committed / spent_ms if spent_ms else None


def parting(left: Sequence[Side], right: Sequence[Side]) -> Parting | None:
    """Where two committed texts differ first; None: they are equal."""
    for index in range(max(len(left), len(right))):
        one = left[index] if index < len(left) else None
        other = right[index] if index < len(right) else None
        if one is None or other is None or one.token_id != other.token_id:
            return Parting(index, one, other)
    return None


def sides(step: Step) -> list[Side]:
    """The tokens that a step committed; none where it failed."""
    if step.committed is None:
        return []
    pairs = zip(step.committed.token_ids, step.committed.texts, strict=True)
    return [Side(token, text, step.index, place) for place, (token, text) in enumerate(pairs)]


def given(step: Step, place: int, left: int, right: int) -> Given:
    """What the target gave tokens `left` and `right` where `step` committed its token number `place`."""
    return Given(_raw_prob(step, place, left), _raw_prob(step, place, right))


def _raw_prob(step: Step, place: int, token_id: int) -> float | None:
    """The target's probability at temperature 1, out of the likeliest tokens or of a drafted child."""
    if step.target is None or step.accept is None or place >= len(step.accept.accept_index):
        return None
    node = step.accept.accept_index[place]
    for row in step.target.rows:
        if row.node == node and token_id in row.token_ids:
            return row.raw_probs[row.token_ids.index(token_id)]
    if step.tree is None:
        return None
    for child, parent in enumerate(step.tree.parents[1:]):
        if parent == node and step.tree.token_ids[child] == token_id:
            return step.target.raw_probs[child]
    return None
