"""Runs side by side over HTTP: each one's outline (texts and times, step by step), their figures, and where
two texts part. All arithmetic is the library's (ddtree/lanes.py, ddtree/statistics.py).

Steps are read once: what is kept of the runs looked at last is extended by what they have done since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from app.api import found_run, run_json
from app.errors import ApiError
from app.runs import RunRow, RunStore
from ddtree.lanes import Given, Side, given, parting, sides, tokens_per_second
from ddtree.settings import Settings
from ddtree.statistics import Statistics, step_statistics
from ddtree.trace import Step, Trace

MOST_LANES = 4
_PAGE = 200  # steps read at once
_KEPT = 16  # runs
_LARGEST = 2**31


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OutlineStep(Answer):
    """`ms` is the step's own measured time; null where it was not timed."""

    texts: list[str]
    origins: list[str]
    accepted: int
    nodes: int
    ms: float | None


class Outline(Answer):
    """Steps `first` on; `total` is how many the run has, `state` its state before they were read."""

    run_id: str
    state: str
    first: int
    total: int
    steps: list[OutlineStep]


class Lane(Answer):
    """One run's figures; `speedup` is to the first autoregressive lane, null without one."""

    run: dict[str, Any]
    prompt: str
    settings: Settings
    device: str
    steps: int
    committed: int
    accepted_drafts: int
    tau: float | None
    tokens_per_second: float | None
    speedup: float | None
    stages: dict[str, float]  # means a step, milliseconds


class Token(Answer):
    token_id: int
    text: str
    step: int
    place: int


class Probabilities(Answer):
    """The target's, at temperature 1, of the two tokens of a difference, in one lane's record."""

    left: float | None
    right: float | None
    margin: float | None  # of the two logits


class Difference(Answer):
    """Lane `left` against lane `right`: the first index at which their texts differ, null where they are
    equal; of a text that has ended the token is null."""

    left: int
    right: int
    index: int | None
    tokens: tuple[Token | None, Token | None]
    given: tuple[Probabilities | None, Probabilities | None]


class Lanes(Answer):
    lanes: list[Lane]
    base: int | None  # the lane that speed-ups are to
    same_prompt: bool
    same_seed: bool
    same_machine: bool
    differences: list[Difference]


@dataclass(slots=True)
class _Read:
    """What has been read of a run."""

    steps: list[OutlineStep] = field(default_factory=list)
    tokens: list[Side] = field(default_factory=list)
    found: Statistics = field(default_factory=Statistics)
    lock: threading.Lock = field(default_factory=threading.Lock)


class LaneReader:
    """Outlines of runs, the last few kept."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._read: OrderedDict[str, _Read] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, row: RunRow) -> _Read:
        """What there is of the run now."""
        with self._lock:
            read = self._read.setdefault(row.run_id, _Read())
            self._read.move_to_end(row.run_id)
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
        with read.lock:
            while len(read.steps) < row.steps:
                page = self._store.steps(row, len(read.steps), min(_PAGE, row.steps - len(read.steps)))
                for stored in page:
                    _extend(read, Step.model_validate_json(stored.json))
                if not page:
                    break
        return read

    def step(self, row: RunRow, index: int) -> Step:
        (stored,) = self._store.steps(row, index, 1)
        return Step.model_validate_json(stored.json)

    def head(self, row: RunRow) -> Trace:
        text = self._store.head(row)
        if not text:
            raise ApiError(404, "not_found", f"run {row.run_id} was deleted meanwhile", "run_id")
        return Trace.model_validate_json(text)


def _extend(read: _Read, step: Step) -> None:
    tokens = sides(step)
    walked = [] if step.accept is None else step.accept.accept_index[1 : len(tokens) + 1]
    drafted = [] if step.tree is None else [step.tree.origin[node - 1] for node in walked]
    read.steps.append(
        OutlineStep(
            texts=[token.text for token in tokens],
            origins=[*drafted, *["bonus"] * (len(tokens) - len(drafted))],
            accepted=len(walked),
            nodes=0 if step.tree is None else len(step.tree.token_ids),
            ms=None if step.timing_ms is None else step.timing_ms.total,
        )
    )
    read.tokens.extend(tokens)
    read.found += step_statistics(step)


def lanes_router(store: RunStore) -> APIRouter:
    router = APIRouter()
    reader = LaneReader(store)

    @router.get("/api/runs/{run_id}/outline", response_model=Outline)
    def outline(
        run_id: str,
        first: Annotated[int, Query(alias="from", ge=0, lt=_LARGEST)] = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    ) -> Outline:
        """Texts, origins and measured time of the steps from index `from` on."""
        row = found_run(store, run_id)
        steps = reader.read(row).steps[first : min(first + limit, row.steps)]
        return Outline(run_id=row.run_id, state=row.state, first=first, total=row.steps, steps=steps)

    @router.get("/api/lanes", response_model=Lanes)
    def lanes(run: Annotated[list[str], Query()]) -> Lanes:
        """Figures of one to four runs, named `run` again and again, and where their texts part."""
        if len(run) > MOST_LANES:
            message = f"run is given {len(run)} times, the most is {MOST_LANES}: leave some out"
            raise ApiError(422, "bad_value", message, "run")
        return side_by_side(reader, [found_run(store, run_id) for run_id in run])

    return router


def side_by_side(reader: LaneReader, rows: list[RunRow]) -> Lanes:
    """The answer for these runs, in their order; texts are compared with the first autoregressive one's, or
    with the first one's where there is none."""
    heads = [reader.head(row) for row in rows]
    reads = [reader.read(row) for row in rows]
    plain = [i for i, head in enumerate(heads) if head.settings.method == "autoregressive"]
    base = plain[0] if plain else None
    speeds = [tokens_per_second(read.found) for read in reads]
    against = None if base is None else speeds[base]
    lanes = [
        _lane(row, head, read, speed, speed / against if speed and against else None)
        for row, head, read, speed in zip(rows, heads, reads, speeds, strict=True)
    ]
    first = base or 0
    return Lanes(
        lanes=lanes,
        base=base,
        same_prompt=len({tuple(head.prompt.token_ids) for head in heads}) == 1,
        same_seed=len({head.settings.seed for head in heads}) == 1,
        same_machine=len({head.engine.model_dump_json() for head in heads}) == 1,
        differences=[
            _difference(reader, rows, reads, first, other) for other in range(len(rows)) if other != first
        ],
    )


def _lane(row: RunRow, head: Trace, read: _Read, speed: float | None, speedup: float | None) -> Lane:
    found = read.found
    return Lane(
        run=run_json(row),
        prompt=head.prompt.text,
        settings=head.settings,
        device=head.engine.device,
        steps=found.steps,
        committed=found.committed,
        accepted_drafts=found.accepted_drafts,
        tau=found.tau,
        tokens_per_second=speed,
        speedup=speedup,
        stages=found.stage_means(),
    )


def _difference(
    reader: LaneReader, rows: list[RunRow], reads: list[_Read], left: int, right: int
) -> Difference:
    both = (left, right)
    found = parting(reads[left].tokens, reads[right].tokens)
    if found is None:
        return Difference(left=left, right=right, index=None, tokens=(None, None), given=(None, None))
    one, other = found.left, found.right
    seen: tuple[Probabilities | None, Probabilities | None] = (None, None)
    if one is not None and other is not None:
        ids = (one.token_id, other.token_id)
        first, second = (
            given(reader.step(rows[lane], side.step), side.place, *ids)
            for lane, side in zip(both, (one, other), strict=True)
        )
        seen = (_probabilities(first), _probabilities(second))
    return Difference(
        left=left, right=right, index=found.index, tokens=(_token(one), _token(other)), given=seen
    )


def _token(side: Side | None) -> Token | None:
    if side is None:
        return None
    return Token(token_id=side.token_id, text=side.text, step=side.step, place=side.place)


def _probabilities(seen: Given) -> Probabilities:
    return Probabilities(left=seen.left, right=seen.right, margin=seen.margin)
