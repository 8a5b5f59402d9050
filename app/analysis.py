"""A run's analysis over HTTP: what smaller budgets would have given, and where acceptance comes from.

All arithmetic is the library's (ddtree/whatif.py, statistics.py, probes.py); here it becomes JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from app.api import found_run
from app.errors import ApiError
from app.runs import RunRow, RunStore
from ddtree.probes import RANKS, Bin, calibration, rank_probe
from ddtree.statistics import Acceptance, Statistics, run_statistics
from ddtree.trace import Step
from ddtree.whatif import Curve, budget_curve

_PAGE = 200  # steps read at once
_LARGEST = 2**31


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetPoint(Answer):
    budget: int
    emitted: float  # committed tokens a step, bonus included
    accepted: float  # accepted drafts a step
    bonus_unknown: int  # steps whose bonus token would be another draw
    tokens_per_second: float | None


class RowTiming(Answer):
    """Means, in milliseconds."""

    source: str | None
    rows: int
    steps: int
    draft: float | None
    verify: float | None
    total: float


class WhatIf(Answer):
    steps: int
    left_out: int
    auto: int  # steps whose budget was "auto"
    points: list[BudgetPoint]
    times: list[RowTiming]
    measured: list[int]
    best: int | None


class Rate(Answer):
    proposed: int
    reached: int
    accepted: int
    conditional: float | None
    unconditional: float | None


class Ranks(Answer):
    upto: tuple[int, ...]  # upper ends of the classes, counted from 1
    counts: tuple[int, ...]
    beyond: int
    undrafted: int


class Calibration(Answer):
    low: float
    high: float
    nodes: int
    agreed: int
    draft: float | None  # mean probability the drafter gave
    rate: float | None
    interval: tuple[float, float] | None


class AcceptanceAnswer(Answer):
    steps: int
    tau: float | None
    accepted_depth: float | None
    depths: list[Rate]  # [d - 1]
    cells: list[list[Rate]]  # [d - 1][rank]
    ranks: Ranks
    calibration: list[Calibration]


class Analysis(Answer):
    """Of the steps `first` to `last`, both included; `total` is how many the run has."""

    run_id: str
    first: int
    last: int
    total: int
    whatif: WhatIf
    acceptance: AcceptanceAnswer


def analysis_router(store: RunStore) -> APIRouter:
    router = APIRouter()

    @router.get("/api/runs/{run_id}/analysis", response_model=Analysis)
    def analysis(
        run_id: str,
        first: Annotated[int, Query(alias="from", ge=0, lt=_LARGEST)] = 0,
        last: Annotated[int | None, Query(alias="to", ge=0, lt=_LARGEST)] = None,
    ) -> Analysis:
        """What-if by budget and acceptance of the steps `from` to `to`, both included; times are measured
        over the whole run."""
        row = found_run(store, run_id)
        newest = max(row.steps - 1, 0)
        end = newest if last is None else min(last, newest)
        if first > end:
            raise ApiError(
                422,
                "bad_value",
                f"from cannot be {first}: it must be at most {end}, the last step asked for",
                "from",
            )
        steps = list(_steps(store, row))
        return analyse(row.run_id, steps, first, end)

    return router


def _steps(store: RunStore, row: RunRow) -> Iterator[Step]:
    for first in range(0, row.steps, _PAGE):
        for stored in store.steps(row, first, min(_PAGE, row.steps - first)):
            yield Step.model_validate_json(stored.json)


def analyse(run_id: str, steps: list[Step], first: int, last: int) -> Analysis:
    """The answer for the run's `steps`, of which first..last are looked at."""
    chosen = steps[first : last + 1]
    return Analysis(
        run_id=run_id,
        first=first,
        last=last,
        total=len(steps),
        whatif=_whatif(budget_curve(chosen, steps)),
        acceptance=_acceptance(chosen),
    )


def _whatif(curve: Curve) -> WhatIf:
    points = [
        BudgetPoint(
            budget=point.budget,
            emitted=point.emitted / curve.steps,
            accepted=point.accepted_drafts / curve.steps,
            bonus_unknown=point.bonus_unknown,
            tokens_per_second=curve.tokens_per_second(point),
        )
        for point in curve.points
    ]
    times = [
        RowTiming(
            source=time.source,
            rows=time.rows,
            steps=time.steps,
            draft=time.draft,
            verify=time.verify,
            total=time.total,
        )
        for time in curve.times
    ]
    return WhatIf(
        steps=curve.steps,
        left_out=curve.left_out,
        auto=curve.auto,
        points=points,
        times=times,
        measured=curve.measured,
        best=curve.best,
    )


def _acceptance(steps: list[Step]) -> AcceptanceAnswer:
    found, probe = run_statistics(steps), rank_probe(steps)
    return AcceptanceAnswer(
        steps=found.steps,
        tau=found.tau,
        accepted_depth=found.accepted_depth,
        depths=_depths(found),
        cells=[
            [_rate(rate, count) for rate, count in zip(rates, counts, strict=True)]
            for rates, counts in zip(found.by_depth_and_rank(), found.proposed, strict=True)
        ],
        ranks=Ranks(upto=RANKS, counts=probe.counts, beyond=probe.beyond, undrafted=probe.undrafted),
        calibration=[_bin(each) for each in calibration(steps)],
    )


def _depths(found: Statistics) -> list[Rate]:
    proposed = [sum(row) for row in found.proposed]
    return [_rate(rate, count) for rate, count in zip(found.by_depth(), proposed, strict=True)]


def _rate(rate: Acceptance, proposed: int) -> Rate:
    return Rate(
        proposed=proposed,
        reached=rate.reached,
        accepted=rate.accepted,
        conditional=rate.conditional,
        unconditional=rate.unconditional,
    )


def _bin(each: Bin) -> Calibration:
    return Calibration(
        low=each.low,
        high=each.high,
        nodes=each.nodes,
        agreed=each.agreed,
        draft=each.mean_draft_prob,
        rate=each.rate,
        interval=each.interval,
    )
