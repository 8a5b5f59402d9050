"""Static steps in CUDA graphs: captured once for each plan, replayed from then on.

A replay starts the hundreds of kernels of a step with one call. The graphs of a run share a memory pool,
which is safe since they are replayed one after the other on one stream and what outlives a replay (the run's
state) lies outside of the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ddtree.static_step import BUCKETS, Plan, StaticStep, StepOutput

WARM_UPS = 2
"""Runs before a capture: libraries set themselves up in the first ones, which a graph must not hold."""

MOST_GRAPHS = 16
"""Graphs kept of a run. A plan holds temperature and filters, so a slider that moves makes new ones."""


class Captured(Protocol):
    """A step that can be run again: the same kernels over the same memory."""

    output: StepOutput  # overwritten by every replay

    def replay(self) -> None: ...


Capture = Callable[[Callable[[], StepOutput], Callable[[], None]], Captured]
"""capture(step, restore): runs `step` as often as it needs, with `restore` after each run, so that the run's
state is what it was. Capturing itself runs nothing."""


class _CudaCaptured:
    def __init__(self, graph: Any, output: StepOutput) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        self._graph.replay()


class CudaCapture:
    """Captures on the current CUDA device, in one private memory pool."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        """cuda: torch.cuda, or what a test puts in its place."""
        self._cuda = cuda
        self._pool = cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], StepOutput], restore: Callable[[], None]) -> Captured:
        cuda = self._cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                step()
                restore()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self._pool):
            output = step()
        return _CudaCaptured(graph, output)


class StepRunner:
    """Runs plans: out of their graphs, or step by step where there is nothing to capture with."""

    def __init__(self, step: StaticStep, capture: Capture | None) -> None:
        """capture: None runs everything uncaptured."""
        self._step = step
        self._capture = capture
        self._graphs: OrderedDict[Plan, Captured] = OrderedDict()

    def captures(self, plan: Plan) -> bool:
        """Whether the plan runs as one graph. Plans above the largest bucket are never captured."""
        return self._capture is not None and plan.rows in BUCKETS

    def __call__(self, plan: Plan) -> StepOutput:
        """Launches a step. The output of a captured one lasts until the plan's next launch."""
        self._step.prepare(plan)
        if not self.captures(plan):
            return self._step(plan)
        graph = self._graphs.pop(plan, None) or self._captured(plan)
        self._graphs[plan] = graph  # the most recently used is the last
        graph.replay()
        return graph.output

    @torch.inference_mode()
    def _captured(self, plan: Plan) -> Captured:
        assert self._capture is not None
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        saved = self._step.state.saved()

        def restore() -> None:
            for tensor, value in saved:
                tensor.copy_(value)

        return self._capture(lambda: self._step(plan), restore)
