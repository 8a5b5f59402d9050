"""The host's half of static steps: a step is read when the next one already runs.

What a step leaves on the device is copied to (pinned) host memory behind it, asynchronously; the host
launches the step after it and only then waits for the copy. So the device never waits for the host, settings
hold from the next launch on, and a run that has ended leaves one launched step that nobody reads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddtree.drafters.base import DRAFT_TEMPERATURE, Draft, DraftFault, candidates_for
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.graphs import Capture, CudaCapture, StepRunner
from ddtree.launch import has_kernels_for
from ddtree.padded import PaddedVerdicts
from ddtree.record import StageClock
from ddtree.retrieve import RetrieveArrays
from ddtree.sampling import TreeVerdict
from ddtree.sampling_faults import fault_of_status
from ddtree.settings import MAX_BUDGET, Settings
from ddtree.static_step import Plan, StaticState, StaticStep, StepOutput, plan_step
from ddtree.target import Target
from ddtree.topk import RowFault
from ddtree.trace import Timing
from ddtree.tree import DraftTree

_MOST_IDLE = 2
_ROUND = 256


@dataclass(frozen=True)
class StaticMode:
    """How a decoder runs static steps."""

    padded: bool = True  # passes have the rows of a bucket
    new_capture: Callable[[], Capture] | None = None  # makes what captures a run's steps; None: uncaptured


def static_mode(target: Target) -> StaticMode | None:
    """What suits the machine: captured on CUDA, with kernels for it and a dense target that
    is on one device; None elsewhere."""
    if target.device.type != "cuda" or not has_kernels_for(torch.empty(0, device=target.device)):
        return None
    on_one_device = target.spread is None
    return StaticMode(new_capture=CudaCapture) if on_one_device and is_dense(target) else None


def is_dense(target: Target) -> bool:
    """Whether no layer routes tokens to experts, which takes counts that only the device knows."""
    return not any(name.endswith(".experts") for name, _ in target.model.named_modules())


@dataclass(frozen=True)
class Launched:
    """A step that runs or has run. What is asked of it is there after `wait`."""

    index: int
    plan: Plan
    budget: int
    settings: Settings
    output: StepOutput  # on the host
    events: tuple[Any, Any] | None  # CUDA's, around the step

    def wait(self) -> float:
        """Until the output is there; the seconds that the device took (without a clock of its own: 0)."""
        if self.events is None:
            return 0.0
        first, last = self.events
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def draft(self) -> Draft | None:
        """The candidate rows; None where nothing was drafted. Raises DraftFault."""
        output = self.output
        if self.plan.depth == 0:
            return None
        if fault := int(output.tree_status[1]):
            width = 1 if self.plan.chain else output.log_probs.shape[1]
            row = fault // 8 // width
            depth = row + 1
            raise DraftFault(f"the drafter's logits at depth {depth} cannot be used: {RowFault(row)}", depth)
        width = candidates_for(self.budget, output.target_rows.shape[1])
        return Draft(
            output.log_probs[:, :width],
            output.token_ids[:, :width],
            None,
            "dflash",
            DRAFT_TEMPERATURE,
            output.draft_rows,
        )

    def tree(self) -> tuple[DraftTree, RetrieveArrays]:
        """The tree with its encoding, as long as the tree."""
        nodes = int(self.output.tree_status[0])
        tree = DraftTree(self.output.fields[:, : self.budget + 1].numpy(), self.budget, nodes)
        return tree, RetrieveArrays(*self.output.retrieve[:, : nodes + 1])

    def verdict(self) -> TreeVerdict:
        """The walk. Raises SamplingFault."""
        output = self.output
        if status := int(output.walk_status):
            raise fault_of_status(status, None)
        path, outcome, bonus = output.path[None], output.outcome[None], output.bonus[None]
        tried, decisions = output.tried[None], output.decisions[None]
        return PaddedVerdicts(path, outcome, bonus, tried, decisions, output.walk_status).verdict(0)

    def coins(self) -> tuple[torch.Tensor, float]:
        """As `ddtree.sampling.coins`, of the tree's nodes."""
        return self.output.coins[: int(self.output.tree_status[0]) + 1], float(self.output.final_coin)


class TotalClock(StageClock):
    """Of a step whose stages run as one: the time inside the call that reads it, or the device's own where
    that is longer (it ran on while nobody called)."""

    device_s = 0.0

    def timing(self) -> Timing:
        self.total_s = max(self.device_s, time.perf_counter() - self.began)
        stages = dict.fromkeys(("draft", "build", "encode", "verify", "sample", "commit", "other"))
        return Timing(**stages, total=self.total_s * 1e3)


class Pipeline:
    """The steps of one run, launched one ahead of what is read. Runs one after another may use it."""

    def __init__(self, target: Target, drafter: DFlashDrafter, mode: StaticMode, capacity: int) -> None:
        self.capacity = capacity
        self.drafter = drafter
        self.mode = mode
        self.state = StaticState(target, drafter, capacity)
        self._target = target
        capture = None if mode.new_capture is None else mode.new_capture()
        self._runner = StepRunner(StaticStep(target, self.state), capture)
        self._flying: deque[Launched] = deque()
        self._next = 0

    @staticmethod
    def take(target: Target, drafter: DFlashDrafter, mode: StaticMode, tokens: int) -> Pipeline:
        """For a run of at most `tokens` tokens, prompt included: an idle one with its graphs, or new."""
        # What is committed may pass the limit by a path, and the step that nobody reads comes behind it.
        needed = tokens + 2 * drafter.block_size + MAX_BUDGET + 1
        pipeline: Pipeline
        for pipeline in target.idle:
            if (pipeline.drafter, pipeline.mode) == (drafter, mode) and pipeline.capacity >= needed:
                target.idle.remove(pipeline)
                pipeline.state.clear()
                return pipeline
        return Pipeline(target, drafter, mode, -(-needed // _ROUND) * _ROUND)

    def release(self) -> None:
        """The run has ended: what still runs is discarded, and another run may take this."""
        self._flying.clear()
        if self not in self._target.idle:
            self._target.idle.append(self)
            del self._target.idle[:-_MOST_IDLE]

    # ---- launching ----

    @torch.inference_mode()
    def launch(self, settings: Settings) -> None:
        """Starts the next step under resolved settings, without waiting for anything."""
        plan, budget = plan_step(settings, self._target.vocab_size, self.mode.padded)
        events = None
        if self._target.device.type == "cuda":
            events = (_event(), _event())
            events[0].record()
        self.state.budget.fill_(budget)
        output = StepOutput(*(_to_host(part) for part in self._runner(plan)))
        if events is not None:
            events[1].record()
        self._flying.append(Launched(self._next, plan, budget, settings, output, events))
        self._next += 1

    # ---- reading ----

    def advance(
        self, settings: Settings | None, token_ids: Sequence[int], step: int, seed: int
    ) -> Launched | None:
        """The oldest step that runs, after another one was launched behind it under resolved `settings`
        (None: they need another way, launch nothing). token_ids and step say where the run is. None: nothing
        runs."""
        if settings is not None and not self._flying:
            self._next = step
            self.state.attach(token_ids[-1], len(token_ids) - 1, step, seed)
            self.launch(settings)
        if settings is not None and self._may_follow(settings):
            self.launch(settings)
        return self._flying.popleft() if self._flying else None

    def _may_follow(self, settings: Settings) -> bool:
        """Whether the drafter has seen all that comes before such a step."""
        plan, _ = plan_step(settings, self._target.vocab_size, self.mode.padded)
        return plan.depth == 0 or self._flying[-1].plan.depth > 0

    def committed(self, launched: Launched, length: int) -> None:
        """What was read has brought the run to `length` cached tokens, as far as the host's view goes."""
        self.state.cache.length = length
        if launched.plan.depth:
            self.state.drafter.length = length


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _to_host(part: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, pinned for a GPU, that is complete when the stream has come this far."""
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
    return host.copy_(part, non_blocking=True)
