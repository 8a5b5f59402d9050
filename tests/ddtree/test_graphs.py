"""What surrounds a CUDA graph: captured once for each plan with the run's state put back, replayed over the
same memory. There is no GPU here: a graph is an object that runs its step again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from static_runs import PADDED, decode, of_step, tiny_pair
from test_static_step import PLANS, prepared

from ddtree import graphs
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.graphs import CudaCapture, StepRunner
from ddtree.settings import Settings
from ddtree.static_pipeline import StaticMode
from ddtree.static_step import Plan, StepOutput
from ddtree.target import Target

Pair = tuple[Target, DFlashDrafter]


class FakeGraph:
    """Runs the step at every replay and leaves the result in the memory of the first, as a graph would."""

    def __init__(self, step: Callable[[], StepOutput], restore: Callable[[], None]) -> None:
        self.output = StepOutput(*(part.clone() for part in step()))
        restore()
        self._step = step
        self.replays = 0

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        for kept, new in zip(self.output, self._step(), strict=True):
            kept.copy_(new)


class FakeCapture:
    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []

    def __call__(self, step: Callable[[], StepOutput], restore: Callable[[], None]) -> FakeGraph:
        self.graphs.append(FakeGraph(step, restore))
        return self.graphs[-1]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tiny_pair()
    torch.set_num_threads(threads)


def settings(**changes: Any) -> Settings:
    return Settings(**{"drafter": "dflash", "seed": 5, "max_new_tokens": 24, **changes})


CHANGES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"budget": 12},
    {"budget": 60},
    {"budget": 15, "temperature": 0.0},
    {"method": "chain"},
    {"method": "autoregressive"},
    {},
    {"method": "ddtree"},
]


def test_a_replayed_run_is_the_uncaptured_one(pair: Pair) -> None:
    made: list[FakeCapture] = []

    def new_capture() -> FakeCapture:
        made.append(FakeCapture())
        return made[-1]

    pair[0].idle.clear()
    mode = StaticMode(new_capture=new_capture)
    replayed = decode(pair, mode, settings(), CHANGES)
    uncaptured = decode(pair, PADDED, settings(), CHANGES)
    assert [of_step(step) for step in replayed.steps] == [of_step(step) for step in uncaptured.steps]
    (capture,) = made
    replays = [graph.replays for graph in capture.graphs]
    assert sum(replays) >= len(replayed.steps) and max(replays) > 2
    # The same plan in another run: the graphs are still there.
    decode(pair, mode, settings())
    assert len(made) == 1 and capture.graphs[0].replays > replays[0]


def test_a_plan_is_captured_once_and_the_budget_is_no_part_of_it(pair: Pair) -> None:
    capture = FakeCapture()
    step = prepared(pair, PLANS[0])
    runner = StepRunner(step, capture)
    nodes = []
    for budget in (15, 4, 9):
        step.state.budget.fill_(budget)
        output = runner(PLANS[0])
        nodes.append(int(output.tree_status[0]))
        assert output is capture.graphs[0].output
    assert nodes == [15, 4, 9]
    assert len(capture.graphs) == 1 and int(step.state.step) == 3


def test_capturing_leaves_the_run_where_it_was(pair: Pair) -> None:
    captured, plain = prepared(pair, PLANS[0]), prepared(pair, PLANS[0])
    runner = StepRunner(captured, FakeCapture())
    for _ in range(3):
        one, other = runner(PLANS[0]), plain(PLANS[0])
        for name, mine, theirs in zip(one._fields, one, other, strict=True):
            assert mine.equal(theirs), name
    for name in ("root", "length", "step"):
        assert getattr(captured.state, name).equal(getattr(plain.state, name))
    assert captured.state.drafter.last.equal(plain.state.drafter.last)


def test_the_least_recently_used_graph_goes_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    capture = FakeCapture()
    runner = StepRunner(prepared(pair, PLANS[0]), capture)
    first, second, third = PLANS
    for plan, captured in [(first, 1), (second, 2), (first, 2), (third, 3), (first, 3), (second, 4)]:
        runner(plan)
        assert len(capture.graphs) == captured


def test_trees_above_the_largest_bucket_are_not_captured(pair: Pair) -> None:
    runner = StepRunner(prepared(pair, PLANS[0]), FakeCapture())
    large = Plan(300, 5, 12, False, (0.0, 0, 1.0), (1.0, 1.0))
    assert runner.captures(PLANS[0]) and not runner.captures(large)
    assert not StepRunner(prepared(pair, PLANS[0]), None).captures(PLANS[0])


class FakeCuda:
    """torch.cuda's part in a capture, written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _stream(self, name: str) -> Any:
        def wait_stream(other: Any) -> None:
            self.calls.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream)

    def graph_pool_handle(self) -> str:
        self.calls.append("pool")
        return "the pool"

    def current_stream(self) -> Any:
        return self._stream("current")

    def Stream(self) -> Any:
        return self._stream("side")

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.calls.append("replay"))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.calls.append(f"on {stream.name}")
        yield
        self.calls.append(f"off {stream.name}")

    @contextmanager
    def graph(self, graph: Any, pool: str) -> Iterator[None]:
        assert graph is not None
        self.calls.append(f"capture in {pool}")
        yield
        self.calls.append("captured")


def test_a_capture_warms_up_on_a_side_stream_and_records_in_the_pool(pair: Pair) -> None:
    cuda = FakeCuda()
    capture = CudaCapture(cuda)
    step = prepared(pair, PLANS[2])

    def run() -> StepOutput:
        cuda.calls.append("step")
        return step(PLANS[2])

    captured = capture(run, lambda: cuda.calls.append("restore"))
    warm_ups = ["step", "restore"] * graphs.WARM_UPS
    assert cuda.calls == [
        "pool",
        "side waits for current",
        "on side",
        *warm_ups,
        "off side",
        "current waits for side",
        "capture in the pool",
        "step",
        "captured",
    ]
    captured.replay()
    assert cuda.calls[-1] == "replay"
    capture(run, lambda: None)
    assert cuda.calls.count("pool") == 1  # one for all
