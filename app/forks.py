"""Forks: a run that goes on from a step of another one, and where the two texts part."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from app.api import found_run, run_json
from app.errors import ApiError
from app.protocol import ForkPoint
from app.runs import RunRow, RunStore
from ddtree.fork import Fork
from ddtree.trace import Trace


class Token(BaseModel):
    """A committed token, with the step that committed it and its place among that step's tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_id: int
    step: int
    place: int


class Lineage(BaseModel):
    """What a run was forked from and what was forked from it.

    `parent` is null where the run is no fork, or its parent is not in this store. `index` counts tokens from
    the fork on: the first that differs, null while all that both have are equal; then `mine` and `theirs` are
    the two tokens. `compared` is how many were compared.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    parent: dict[str, Any] | None
    step: int | None
    compared: int
    index: int | None
    mine: Token | None
    theirs: Token | None
    forks: list[dict[str, Any]]


def forks_router(store: RunStore) -> APIRouter:
    router = APIRouter()

    @router.get("/api/runs/{run_id}/lineage", response_model=Lineage)
    def lineage(run_id: str) -> Lineage:
        row = found_run(store, run_id)
        forks = [run_json(fork) for fork in store.forks(row.run_id)]
        parent = None if row.parent_id is None else store.run(row.parent_id)
        compared, index, mine, theirs = 0, None, None, None
        if parent is not None:
            assert row.parent_step is not None
            ours, others = _tokens(store, row, 0), _tokens(store, parent, row.parent_step)
            compared = min(len(ours), len(others))
            pairs = zip(ours, others, strict=False)
            index = next((i for i, (a, b) in enumerate(pairs) if a.token_id != b.token_id), None)
            if index is not None:
                mine, theirs = ours[index], others[index]
        return Lineage(
            run_id=row.run_id,
            parent=None if parent is None else run_json(parent),
            step=row.parent_step,
            compared=compared,
            index=index,
            mine=mine,
            theirs=theirs,
            forks=forks,
        )

    return router


def _tokens(store: RunStore, row: RunRow, first: int) -> list[Token]:
    """What the run's steps from `first` on committed."""
    return [
        Token(token_id=token_id, step=step, place=place)
        for step, token_ids in store.committed(row, first)
        for place, token_id in enumerate(token_ids)
    ]


def fork_of(store: RunStore, point: ForkPoint, target: str) -> tuple[str, Fork]:
    """(the parent's prompt as it was typed, the fork). `target` is what is loaded: another one's token ids
    mean other things. Raises ApiError."""
    row = store.run(point.run_id)
    if row is None:
        raise ApiError(404, "not_found", f"there is no run {point.run_id} to fork", "fork.run_id")
    if point.step >= row.steps:
        message = f"fork.step cannot be {point.step}: run {row.run_id} has {row.steps} steps, counted from 0"
        raise ApiError(422, "bad_value", message, "fork.step")
    if row.target != target:
        message = f"run {row.run_id} cannot be forked here: it decoded with {row.target}; {target} is loaded"
        raise ApiError(422, "bad_value", message, "fork.run_id")
    prompt = Trace.model_validate_json(store.head(row)).prompt
    before = [i for step, token_ids in store.committed(row) if step < point.step for i in token_ids]
    return prompt.text, Fork(row.run_id, point.step, (*prompt.token_ids, *before))
