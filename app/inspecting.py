"""The Inspector over HTTP: what is pasted or dropped is read once, kept for a while, shown and walked.

Reading is the library's (ddtree/foreign). A few inspections are kept in memory, because a walk with other
coins needs the same rows again; one that has made room for others is answered with 404, and the page gives
its text once more.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from app.bodies import parse_body, read_body
from app.errors import ApiError, shown
from app.settings import MIB
from app.tools import Fault
from ddtree.trace import LogProb

if TYPE_CHECKING:
    from ddtree.foreign import AcceptanceRecord, Foreign, ForeignTree, ForeignWalk

MAX_BYTES = 64 * MIB
_KEPT = 4
_SEED = 0
"""Of the coins of a tree that came without any."""

TreeIndex = Annotated[int, Path(ge=0, lt=2**31)]
Unit = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Pointer(Answer):
    """A step of the encoding: `array[at] = node`."""

    node: int
    parent: int
    array: str
    at: int


class TreeView(Answer):
    """A tree in the words of a trace's step. Lists are as long as the tree (N nodes), or N + 1 with the root:
    parents, retrieve_*, children, uniform_samples. null: not given."""

    index: int
    root_token_id: int | None
    token_ids: list[int] | None
    parents: list[int]
    depths: list[int]
    ranks: list[int] | None
    row: list[int] | None
    log_weights: list[LogProb] | None
    draft_log_probs: list[LogProb] | None
    retrieve_index: list[int] | None
    retrieve_next_token: list[int]
    retrieve_next_sibling: list[int]
    children: list[list[int]]
    lost: list[int]
    faults: list[Fault]
    encoding: list[Pointer]
    accept_index: list[int] | None
    bonus_token_id: int | None
    uniform_samples: list[float]
    final_uniform: float
    coins_given: bool
    node_probs: list[float] | None
    has_rows: bool
    budget: int | None


class AcceptanceView(Answer):
    source: str
    requests: int
    steps: int | None
    drafted: int | None
    accepted: int | None
    mean_emitted: float | None
    per_position: list[int] | None
    unconditional: list[float] | None
    conditional: list[float | None] | None


class Inspection(Answer):
    id: str
    kind: str
    written_as: str
    trees: int
    missing: list[str]
    ignored: list[str]
    acceptance: AcceptanceView | None
    tree: TreeView | None = Field(description="the first one")


class WalkRequest(BaseModel):
    """Coins [N + 1], the root's first; `probs` [N], each node's target probability given its parent."""

    model_config = ConfigDict(extra="forbid")

    uniform_samples: list[Unit]
    final_uniform: Unit
    probs: list[Unit] | None = None
    threshold_single: Unit = 1.0
    threshold_acc: Unit = 1.0


class Tried(Answer):
    node: int
    prob: float
    cumulative: float
    coin: float
    verdict: str


class WalkView(Answer):
    """As a trace's accept, decisions and target.probs; bonus_token_id is null where the probabilities of the
    nodes alone are known and another token was drawn."""

    accept_index: list[int]
    accept_token_num: int
    bonus_token_id: int | None
    bonus_source: str
    bonus_prob: float
    bonus_cumulative: float
    residual_mass: float
    decisions: list[Tried]
    probs: list[float | None]


class Shelf:
    """The last few inspections, by the content they came from."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Foreign] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: str, found: Foreign) -> None:
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def tree(self, key: str, index: int) -> ForeignTree:
        """Raises ApiError 404."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None:
            raise ApiError(
                404, "not_found", f"inspection {shown(key)} is no longer kept: paste it again", "id"
            )
        if index >= len(found.trees):
            raise ApiError(
                404, "not_found", f"there is no tree {index}: there are {len(found.trees)}", "index"
            )
        return found.trees[index]


def inspecting_router() -> APIRouter:
    router = APIRouter(prefix="/api/inspections")
    shelf = Shelf()

    @router.post("", status_code=201, response_model=Inspection)
    async def inspect(request: Request, name: Annotated[str, Query(max_length=255)] = "") -> Inspection:
        """The body is a file's bytes, or pasted text; `name` is the file's."""
        data = await read_body(request, MAX_BYTES)
        return await run_in_threadpool(lambda: _inspect(shelf, data, name))

    @router.get("/{key}/trees/{index}", response_model=TreeView)
    def tree(key: str, index: TreeIndex) -> TreeView:
        return _tree_view(shelf.tree(key, index), index)

    @router.post("/{key}/trees/{index}/walk", response_model=WalkView)
    async def walk(request: Request, key: str, index: TreeIndex) -> WalkView:
        """The walk with these coins, by the sampler's kernel."""
        body = await read_body(request, MIB)
        found = shelf.tree(key, index)
        return await run_in_threadpool(lambda: _walk(found, parse_body(WalkRequest, body)))

    return router


def _inspect(shelf: Shelf, data: bytes, name: str) -> Inspection:
    """Raises ApiError 422."""
    from ddtree.foreign import ForeignError, read_bytes, recognise

    try:
        value, written_as = read_bytes(data, name)
        found = recognise(value)
    except ForeignError as error:
        raise ApiError(422, "bad_value", str(error)) from None
    except RecursionError:
        raise ApiError(422, "bad_value", "the lists are nested too deeply: give plain arrays") from None
    key = hashlib.sha256(name.encode() + b"\0" + data).hexdigest()[:24]
    shelf.put(key, found)
    return Inspection(
        id=key,
        kind=found.kind,
        written_as=written_as,
        trees=len(found.trees),
        missing=found.missing,
        ignored=found.ignored,
        acceptance=None if found.acceptance is None else _acceptance_view(found.acceptance),
        tree=_tree_view(found.trees[0], 0) if found.trees else None,
    )


def _acceptance_view(record: AcceptanceRecord) -> AcceptanceView:
    return AcceptanceView(
        source=record.source,
        requests=record.requests,
        steps=record.steps,
        drafted=record.drafted,
        accepted=record.accepted,
        mean_emitted=record.mean_emitted,
        per_position=record.per_position,
        unconditional=record.unconditional(),
        conditional=record.conditional(),
    )


def _tree_view(tree: ForeignTree, index: int) -> TreeView:
    from ddtree import coins

    drawn, final = coins(_SEED, index, tree.size + 1)
    return TreeView(
        index=index,
        root_token_id=tree.root_token,
        token_ids=tree.token_ids,
        parents=tree.parents,
        depths=tree.depths[1:],
        ranks=tree.ranks,
        row=tree.rows,
        log_weights=_finite(tree.log_weights),
        draft_log_probs=_finite(tree.draft_log_probs),
        retrieve_index=tree.retrieve_index,
        retrieve_next_token=tree.next_token,
        retrieve_next_sibling=tree.next_sibling,
        children=tree.children,
        lost=tree.lost,
        faults=[Fault(kind=fault.kind, node=fault.node, message=fault.message) for fault in tree.faults],
        encoding=[Pointer(**step._asdict()) for step in tree.encoding],
        accept_index=tree.accept_index,
        bonus_token_id=tree.bonus_token_id,
        uniform_samples=tree.coins or drawn.tolist(),
        final_uniform=final if tree.final_coin is None else tree.final_coin,
        coins_given=tree.coins is not None,
        node_probs=tree.node_probs,
        has_rows=tree.target_probs is not None,
        budget=tree.budget,
    )


def _finite(values: list[float] | None) -> list[LogProb] | None:
    return None if values is None else [value if abs(value) < float("inf") else None for value in values]


def _walk(tree: ForeignTree, asked: WalkRequest) -> WalkView:
    """Raises ApiError 422."""
    from ddtree.foreign import ForeignError, walk_tree

    try:
        found: ForeignWalk = walk_tree(
            tree,
            asked.uniform_samples,
            asked.final_uniform,
            node_probs=asked.probs,
            threshold_single=asked.threshold_single,
            threshold_acc=asked.threshold_acc,
        )
    except ForeignError as error:
        raise ApiError(422, "bad_value", str(error)) from None
    verdicts: dict[bool, Any] = {True: "accepted", False: "rejected"}
    return WalkView(
        accept_index=found.accept_index,
        accept_token_num=len(found.accept_index) - 1,
        bonus_token_id=found.bonus_token_id,
        bonus_source=found.bonus_source,
        bonus_prob=found.bonus_prob,
        bonus_cumulative=found.bonus_cumulative,
        residual_mass=found.residual_mass,
        decisions=[
            Tried(
                node=d.node, prob=d.prob, cumulative=d.cumulative, coin=d.coin, verdict=verdicts[d.accepted]
            )
            for d in found.decisions
        ],
        probs=found.probs,
    )
