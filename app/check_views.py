"""The verdict of a check as JSON: the library's figures with the tokens' texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from ddtree.trace import Step

if TYPE_CHECKING:
    from ddtree.lossless import GreedyComparison, RowDifference, SamplerFit, Verdict

MOST_SHOWN = 40
"""Categories that are listed; all of them are counted."""


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CategoryView(Answer):
    """token_id null: several rare tokens together."""

    token_id: int | None
    text: str | None
    tokens: int
    expected: float
    observed: int


class FitView(Answer):
    after: int | None = Field(description="the child whose successors were counted; null: the first token")
    after_text: str | None
    draws: int
    left_out: int
    categories: list[CategoryView] = Field(description="the most expected first")
    count: int = Field(description="of all categories")
    chi_square: float
    degrees: int
    p_value: float | None
    total_variation: float
    expected_variation: float
    impossible: int


class RowView(Answer):
    node: int
    largest: float
    token_id: int
    text: str
    total_variation: float


class GreedyView(Answer):
    """place: which of the compared tokens differs first, from 0; null: none."""

    compared: int
    place: int | None
    committed_id: int | None
    committed_text: str | None
    plain_id: int | None
    plain_text: str | None
    margin: float | None


class CheckResult(Answer):
    sampler: list[FitView]
    rows: list[RowView]
    greedy: GreedyView | None


def result_of(verdict: Verdict, step: Step, text: Callable[[int], str]) -> CheckResult:
    """`text` shows a token."""
    return CheckResult(
        sampler=[_fit(one, step, text) for one in verdict.sampler],
        rows=[_row(row, text) for row in verdict.rows],
        greedy=None if verdict.greedy is None else _greedy(verdict.greedy, text),
    )


def _fit(found: SamplerFit, step: Step, text: Callable[[int], str]) -> FitView:
    fit = found.fit
    assert step.tree is not None
    return FitView(
        after=found.after,
        after_text=None if found.after is None else step.tree.texts[found.after - 1],
        draws=fit.draws,
        left_out=found.left_out,
        categories=[
            CategoryView(
                token_id=each.token_id,
                text=None if each.token_id is None else text(each.token_id),
                tokens=each.tokens,
                expected=each.expected,
                observed=each.observed,
            )
            for each in fit.categories[:MOST_SHOWN]
        ],
        count=len(fit.categories),
        chi_square=fit.chi_square,
        degrees=fit.degrees,
        p_value=fit.p_value,
        total_variation=fit.total_variation,
        expected_variation=fit.expected_variation,
        impossible=fit.impossible,
    )


def _row(row: RowDifference, text: Callable[[int], str]) -> RowView:
    return RowView(
        node=row.node,
        largest=row.largest,
        token_id=row.token_id,
        text=text(row.token_id),
        total_variation=row.total_variation,
    )


def _greedy(found: GreedyComparison, text: Callable[[int], str]) -> GreedyView:
    apart = found.difference
    return GreedyView(
        compared=found.compared,
        place=None if apart is None else apart.place,
        committed_id=None if apart is None else apart.committed,
        committed_text=None if apart is None else text(apart.committed),
        plain_id=None if apart is None else apart.plain,
        plain_text=None if apart is None else text(apart.plain),
        margin=None if apart is None else apart.margin,
    )
