"""Is it lossless? Checks of a step that people start: jobs that take turns on the worker, between steps.

A job is led over HTTP: started with POST, asked after with GET (its progress changes many times a second),
cancelled with DELETE. All arithmetic is the library's (ddtree/lossless.py).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from app.api import found_run
from app.bodies import parse_body, read_body
from app.check_views import CheckResult, result_of
from app.engine import LoadedEngine
from app.errors import ApiError, shown
from app.runs import RunRow, RunStore
from app.tasks import Examine
from app.worker import Worker
from ddtree.trace import Step, Trace

if TYPE_CHECKING:
    from ddtree.lossless import Progress, Verdict

DRAWS = 20_000
MOST_DRAWS = 500_000
_LEAST_DRAWS = 100
_KEPT = 32
_MOST_LIVE = 4
_PAGE = 200
_ENOUGH = 64
"""Greedy tokens that are compared at most."""

State = Literal["waiting", "running", "done", "failed", "cancelled"]
StepIndex = Annotated[int, Path(ge=0, lt=2**31)]


class CheckRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    draws: Annotated[int, Field(strict=True, ge=_LEAST_DRAWS, le=MOST_DRAWS)] = DRAWS
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**53)] | None = Field(None, description="null: drawn")


class CheckView(BaseModel):
    """A check as it stands. `phase`: context (the text before the step is read), rows (its tree is scored),
    draws, plain (greedy tokens against plain decoding); done of total in that phase."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    run_id: str
    step: int
    state: State
    phase: str | None
    done: int
    total: int
    seconds: float
    draws: int
    seed: int
    message: str | None = Field(description="why it failed")
    result: CheckResult | None


class Check:
    """One job. `advance` runs on the worker's thread, the rest on any."""

    def __init__(
        self, run_id: str, context: list[int], step: Step, following: list[int], asked: CheckRequest
    ) -> None:
        self.id = secrets.token_hex(8)
        self.run_id, self.step = run_id, step
        self._context, self._following = context, following
        self.draws = asked.draws
        self.seed = secrets.randbits(53) if asked.seed is None else asked.seed
        self.state: State = "waiting"
        self.message: str | None = None
        self._progress: Progress | None = None
        self._result: CheckResult | None = None
        self._turns: Iterator[Progress | Verdict] | None = None
        self._engine: LoadedEngine | None = None
        self._began, self._ended = time.monotonic(), 0.0

    def begin(self, engine: LoadedEngine) -> None:
        if self.state != "waiting":
            return  # cancelled before its first turn
        self._engine = engine
        self._turns = engine.check_step(self._context, self.step, self._following, self.draws, self.seed)
        self.state = "running"

    def advance(self) -> bool:
        """One turn; whether there is more to do."""
        if self.state != "running" or self._turns is None or self._engine is None:
            self._turns = None
            return False
        from ddtree.lossless import Progress

        found = next(self._turns)
        if isinstance(found, Progress):
            self._progress = found
            return True
        self._result = result_of(found, self.step, self._engine.shown)
        self._end("done")
        return False

    def fail(self, message: str) -> None:
        if self.live:
            self.message = message
            self._end("failed")

    def cancel(self) -> None:
        if self.live:
            self._end("cancelled")

    def _end(self, state: State) -> None:
        self._ended = time.monotonic()
        self.state = state

    @property
    def live(self) -> bool:
        return self.state in ("waiting", "running")

    def view(self) -> CheckView:
        progress = self._progress
        return CheckView(
            id=self.id,
            run_id=self.run_id,
            step=self.step.index,
            state=self.state,
            phase=None if progress is None else progress.phase,
            done=0 if progress is None else progress.done,
            total=0 if progress is None else progress.total,
            seconds=round((time.monotonic() if self.live else self._ended) - self._began, 2),
            draws=self.draws,
            seed=self.seed,
            message=self.message,
            result=self._result,
        )


class Checks:
    """The checks of this server, the newest few of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Check] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, check: Check) -> None:
        """Raises ApiError 429."""
        with self._lock:
            live = sum(one.live for one in self._kept.values())
            if live >= _MOST_LIVE:
                message = f"{live} checks go on already, which is the most: cancel one first"
                raise ApiError(429, "queue_full", message)
            self._kept[check.id] = check
            for key in [key for key, one in self._kept.items() if not one.live][
                : max(len(self._kept) - _KEPT, 0)
            ]:
                del self._kept[key]

    def find(self, key: str) -> Check:
        """Raises ApiError 404."""
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            raise ApiError(404, "not_found", f"there is no check {shown(key)}: start it again", "id")
        return found


def checks_router(store: RunStore, worker: Worker) -> APIRouter:
    router = APIRouter()
    checks = Checks()

    @router.post("/api/runs/{run_id}/steps/{index}/lossless", status_code=202, response_model=CheckView)
    async def start(request: Request, run_id: str, index: StepIndex) -> CheckView:
        """`draws` walks of the step's tree, its rows against plain passes; greedy: plain decoding."""
        asked = parse_body(CheckRequest, await read_body(request, 4096) or b"{}")
        check = await run_in_threadpool(
            lambda: prepare(store, found_run(store, run_id), index, asked, worker)
        )
        checks.add(check)
        worker.post(Examine(check, lambda frame: check.fail(frame.message)))
        return check.view()

    @router.get("/api/checks/{key}", response_model=CheckView)
    async def ask(key: str) -> CheckView:
        return checks.find(key).view()

    @router.delete("/api/checks/{key}", response_model=CheckView)
    async def cancel(key: str) -> CheckView:
        check = checks.find(key)
        check.cancel()
        return check.view()

    return router


def prepare(store: RunStore, row: RunRow, index: int, asked: CheckRequest, worker: Worker) -> Check:
    """The job of a stored step. Raises ApiError: 404, 409 (no model, or another), 422 (not checkable)."""
    from ddtree.lossless import NotCheckable, check_checkable

    description = worker.status.description
    if description is None:
        raise ApiError(
            409, "not_ready", f"there is no model to check with: {worker.status.message or 'loading'}"
        )
    if index >= row.steps:
        raise ApiError(404, "not_found", f"run {row.run_id} has no step {index}: it has {row.steps}", "index")
    head = Trace.model_validate_json(store.head(row) or "{}")
    if head.target.name != description.target.name:
        message = f"the run's target is {head.target.name}, the model loaded now is {description.target.name}"
        raise ApiError(409, "other_target", f"{message}: serve that one to check its steps")
    context, following, step = _tokens(store, row, index, list(head.prompt.token_ids))
    try:
        check_checkable(step)
    except NotCheckable as error:
        raise ApiError(422, "not_checkable", str(error)) from None
    if step.root.position != len(context) - 1 or step.root.token_id != context[-1]:
        message = f"the tokens before step {index} are not all stored, so its context is not known"
        raise ApiError(422, "not_checkable", f"{message}: choose a step of a whole run")
    return Check(row.run_id, context, step, following, asked)


def _tokens(
    store: RunStore, row: RunRow, index: int, context: list[int]
) -> tuple[list[int], list[int], Step]:
    """(prompt and what was committed before the step; what it and the greedy ones after it committed; it)."""
    following: list[int] = []
    chosen: Step | None = None
    for first in range(0, row.steps, _PAGE):
        for stored in store.steps(row, first, min(_PAGE, row.steps - first)):
            step = Step.model_validate_json(stored.json)
            committed = [] if step.committed is None else step.committed.token_ids
            if step.index < index:
                context += committed
                continue
            chosen = chosen or step
            if len(following) >= _ENOUGH or (step.index > index and not step.settings.greedy):
                return context, following, chosen
            following += committed
    assert chosen is not None  # index < row.steps
    return context, following, chosen
