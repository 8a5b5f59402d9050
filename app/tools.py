"""The library over HTTP, without a run: a tree from pasted top-k rows, a check of pasted retrieve arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from app.bodies import parse_body, read_body
from app.errors import ApiError
from app.settings import MIB
from ddtree.settings import MAX_BUDGET
from ddtree.trace import LogProb, Retrieve

MAX_BODY_BYTES = 16 * MIB

Int64 = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class TreeRequest(BaseModel):
    """Candidate rows: natural logarithms, each row descending; null is -inf. `child_rows[row][rank]` is the
    row of that candidate's own children (-1: none); left out, row r's children stand in row r + 1."""

    model_config = ConfigDict(extra="forbid")

    top_log_probs: list[list[Real | None]]
    top_token_ids: list[list[Annotated[Int64, Field(ge=0)]]]
    child_rows: list[list[Int64]] | None = None
    budget: Annotated[int, Field(strict=True, ge=0, le=MAX_BUDGET)]


class BuiltTree(BaseModel):
    """As in a trace's step, without texts."""

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    ranks: list[int]
    row: list[int]
    log_weights: list[float]
    draft_log_probs: list[LogProb]


class TreeAnswer(BaseModel):
    num_nodes: int
    budget: int
    tree: BuiltTree
    retrieve: Retrieve


def _either(name: str) -> AliasChoices:
    """EAGLE's own spelling is taken too, and never written."""
    return AliasChoices(name, name.replace("retrieve", "retrive"))


class RetrieveRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    retrieve_next_token: list[Int64] = Field(validation_alias=_either("retrieve_next_token"))
    retrieve_next_sibling: list[Int64] = Field(validation_alias=_either("retrieve_next_sibling"))
    retrieve_index: list[Int64] | None = Field(None, validation_alias=_either("retrieve_index"))
    num_nodes: Annotated[int, Field(strict=True, ge=0)] | None = None
    parents: list[Int64] | None = None
    depths: list[Int64] | None = None
    log_weights: list[LogProb] | None = None
    candidates: list[Int64] | None = None


class Fault(BaseModel):
    kind: str
    node: int
    message: str


class RetrieveAnswer(BaseModel):
    ok: bool
    faults: list[Fault]


def tools_router() -> APIRouter:
    router = APIRouter(prefix="/api")

    @router.post("/tree", response_model=TreeAnswer)
    async def tree(request: Request) -> TreeAnswer:
        body = await read_body(request, MAX_BODY_BYTES)
        return await run_in_threadpool(lambda: build_tree(parse_body(TreeRequest, body)))

    @router.post("/retrieve/check", response_model=RetrieveAnswer)
    async def check(request: Request) -> RetrieveAnswer:
        body = await read_body(request, MAX_BODY_BYTES)
        return await run_in_threadpool(lambda: check_arrays(parse_body(RetrieveRequest, body)))

    return router


def build_tree(given: TreeRequest) -> TreeAnswer:
    """Raises ApiError 422 that names row and column."""
    import torch

    from ddtree import build_ddtree_tree, compile_ddtree_retrieve

    logs = [[-math.inf if value is None else value for value in row] for row in given.top_log_probs]
    _same_shape("top_token_ids", given.top_token_ids, logs)
    if given.child_rows is not None:
        _same_shape("child_rows", given.child_rows, logs)
    shape = (len(logs), len(logs[0]) if logs else 0)
    try:
        built = build_ddtree_tree(
            torch.tensor(logs, dtype=torch.float64).reshape(shape),
            torch.tensor(given.top_token_ids, dtype=torch.int64).reshape(shape),
            None
            if given.child_rows is None
            else torch.tensor(given.child_rows, dtype=torch.int64).reshape(shape),
            given.budget,
        )
        arrays = compile_ddtree_retrieve(built)
    except ValueError as error:
        raise ApiError(422, "bad_value", str(error)) from None
    rows, ranks = built.rows.tolist(), built.ranks.tolist()
    return TreeAnswer(
        num_nodes=int(built.num_nodes),
        budget=given.budget,
        tree=BuiltTree(
            token_ids=built.token_ids.tolist(),
            parents=built.parents.tolist(),
            depths=built.depths.tolist(),
            ranks=ranks,
            row=rows,
            log_weights=built.log_weights.tolist(),
            draft_log_probs=[given.top_log_probs[row][rank] for row, rank in zip(rows, ranks, strict=True)],
        ),
        retrieve=Retrieve(
            retrieve_index=arrays.retrieve_index.tolist(),
            retrieve_next_token=arrays.retrieve_next_token.tolist(),
            retrieve_next_sibling=arrays.retrieve_next_sibling.tolist(),
        ),
    )


def _same_shape(name: str, rows: list[list[int]], logs: list[list[float]]) -> None:
    if len(rows) != len(logs):
        raise ApiError(422, "bad_value", f"{name} has {len(rows)} rows, top_log_probs has {len(logs)}", name)
    for index, row in enumerate(rows):
        for other, wanted in ((f"top_log_probs[{index}]", len(logs[index])), ("row 0", len(logs[0]))):
            if len(row) != wanted:
                message = (
                    f"{name}[{index}] has {len(row)} entries, {other} has {wanted}: all rows are as long"
                )
                raise ApiError(422, "bad_value", message, f"{name}[{index}]")


def check_arrays(given: RetrieveRequest) -> RetrieveAnswer:
    """Every fault of the arrays, with its node. Raises ApiError 422 for lengths that do not fit together."""
    from ddtree import check_retrieve

    weights = given.log_weights
    try:
        found = check_retrieve(
            given.retrieve_next_token,
            given.retrieve_next_sibling,
            num_nodes=given.num_nodes,
            parents=given.parents,
            depths=given.depths,
            log_weights=None if weights is None else [-math.inf if w is None else w for w in weights],
            candidates=given.candidates,
        )
    except ValueError as error:
        raise ApiError(422, "bad_value", str(error)) from None
    faults = [Fault(kind=fault.kind, node=fault.node, message=fault.message) for fault in found]
    faults += _index_faults(given.retrieve_index or [], len(given.retrieve_next_token))
    return RetrieveAnswer(ok=not faults, faults=faults)


def _index_faults(index: list[int], nodes: int) -> Iterator[Fault]:
    """retrieve_index is a batch row's offset plus the node."""
    if index and len(index) != nodes:
        message = f"retrieve_index has {len(index)} entries, retrieve_next_token has {nodes}"
        raise ApiError(422, "bad_value", message, "retrieve_index")
    for node, value in enumerate(index):
        if value != index[0] + node:
            message = f"retrieve_index is {value}; counted from the root's {index[0]} it is {index[0] + node}"
            yield Fault(kind="wrong_index", node=node, message=message)
