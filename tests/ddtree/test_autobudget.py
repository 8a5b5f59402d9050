"""Budget "auto": the choice against brute force, what it is made from, and runs that repeat."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour, follow
from numpy.typing import NDArray

import ddtree
from ddtree import autobudget
from ddtree.autobudget import BINS, DOUBT, LONGEST_PAUSE, STAIRS, WINDOW, AutoBudget, StepTimes
from ddtree.decoder import TreeDecoder
from ddtree.replay import check_trace
from ddtree.settings import Settings
from ddtree.trace import Step, Timing, Trace
from ddtree.trace_file import TraceError, load_trace
from ddtree.tree import DraftTree, build_ddtree_tree_from_topk
from ddtree.whatif import budget_curve

STAIRCASE = {1: 8.0, 8: 12.0, 16: 16.0, 24: 21.0, 32: 27.0, 48: 38.0, 64: 50.0}


def timing(*, verify: float, rest: float, draft: float = 0.0) -> Timing:
    """rest: all but the pass; draft is a part of it."""
    stages = {"build": 0.0, "encode": 0.0, "sample": 0.0, "commit": 0.0}
    return Timing(draft=draft, verify=verify, other=rest - draft, total=verify + rest, **stages)


class Clock:
    """Stands for `time`: a pass of so many rows takes what the staircase says."""

    def __init__(self, staircase: dict[int, float]) -> None:
        self.now, self.staircase, self.passes = 0.0, staircase, list[int]()

    def perf_counter(self) -> float:
        return self.now

    def run_pass(self, rows: int) -> None:
        self.passes.append(rows)
        self.now += self.staircase[rows] / 1e3


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> StepTimes:
    return measured(monkeypatch, STAIRCASE)


def measured(monkeypatch: pytest.MonkeyPatch, staircase: dict[int, float]) -> StepTimes:
    clock, times = Clock(staircase), StepTimes()
    with monkeypatch.context() as patched:
        patched.setattr(autobudget, "time", clock)
        times.measure(clock.run_pass)
    return times


def random_tree(seed: int, budget: int = 63) -> DraftTree:
    generator = torch.Generator().manual_seed(seed)
    spread = 0.5 + 4 * torch.rand(7, 1, generator=generator)
    log_probs = torch.log_softmax(torch.randn(7, 40, generator=generator) * spread, dim=1)
    order = torch.sort(log_probs, dim=1, descending=True, stable=True)
    return build_ddtree_tree_from_topk(order.values, order.indices, budget)


def weights(*probs: float) -> NDArray[np.float64]:
    return np.log(np.array(probs))


# ---- the choice ----


@pytest.mark.parametrize("seed", range(40))
def test_no_budget_promises_more_tokens_a_millisecond(seed: int, times: StepTimes) -> None:
    draw = random.Random(seed)
    rest = draw.uniform(0.1, 12)
    for _ in range(12):
        times.saw("dflash", 5, timing(verify=1.0, rest=rest))
    log_weights = random_tree(seed, draw.choice([3, 15, 40, 63])).log_weights.numpy()

    budget, choice = AutoBudget(times).choose("dflash", log_weights, 63)

    def promise(nodes: int) -> float:
        stair = min(count for count in STAIRCASE if count >= nodes + 1)
        tokens = 1 + math.fsum(math.exp(weight) for weight in log_weights[:nodes])
        return tokens / (rest + STAIRCASE[stair])

    promises = [promise(nodes) for nodes in range(len(log_weights) + 1)]
    assert promises[budget] == pytest.approx(max(promises))
    assert budget == min(b for b, value in enumerate(promises) if value >= max(promises) * (1 - 1e-12))
    assert choice.emitted / choice.ms == pytest.approx(promises[budget])
    assert choice.ceiling == 63


def test_a_tree_without_hope_is_not_verified(times: StepTimes) -> None:
    assert AutoBudget(times).choose("dflash", weights(*[0.01] * 63), 63)[0] == 0
    assert AutoBudget(times).choose(None, weights(), 0)[0] == 0


def test_sure_nodes_are_all_verified_and_uncertain_ones_to_the_end_of_a_stair(times: StepTimes) -> None:
    assert AutoBudget(times).choose("dflash", weights(*[0.9] * 23, *[1e-6] * 40), 63)[0] == 23
    assert AutoBudget(times).choose("dflash", weights(0.9, 0.5, *[0.05] * 61), 63)[0] == 7


def test_the_first_nodes_are_the_tree_of_the_smaller_budget() -> None:
    whole = random_tree(3)
    for budget in (0, 1, 7, 40, 63, 80):
        smaller, cut = random_tree(3, budget), whole.first(budget)
        assert (cut.num_nodes, cut.budget) == (min(budget, 63), budget)
        for name in ("token_ids", "depths", "parents", "ranks", "rows", "log_weights"):
            if budget <= 63:
                assert torch.equal(getattr(cut, name), getattr(smaller, name)), (budget, name)
        assert torch.equal(cut.visibility(), whole.visibility()[: budget + 1, : budget + 1])


def test_probabilities_are_believed_as_far_as_they_held(times: StepTimes) -> None:
    auto, log_weights = AutoBudget(times), weights(0.8, 0.2, 0.1, 0.01)
    assert auto.promises("dflash", log_weights)[0] == pytest.approx([1, 1.8, 2.0, 2.1, 2.11])
    for _ in range(10):  # the likeliest node falls every time, its sibling always holds
        auto.saw("dflash", weights(0.8, 0.2), [0, 2], timing(verify=12, rest=3))
    high, middle = DOUBT / (8 + DOUBT), (10 + DOUBT) / (2 + DOUBT)
    assert auto.promises("dflash", log_weights)[0] == pytest.approx(
        np.cumsum([1, 0.8 * high, 0.2 * middle, 0.1, 0.01])
    )
    assert 0.1 < BINS[1] <= 0.2 < BINS[0] <= 0.8


# ---- times ----


def test_passes_are_a_staircase(times: StepTimes) -> None:
    assert times.known == list(STAIRCASE)
    expected = [STAIRCASE[min(count for count in STAIRCASE if count >= rows)] for rows in range(1, 65)]
    assert times.of_passes(64) == pytest.approx(expected)
    assert len(times.of_passes(100)) == 64  # what was not measured is not made up


def test_a_slow_target_is_measured_at_two_stairs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, {stair: 400.0 + stair for stair in STAIRS})
    assert times.known == [1, 8]


def test_times_follow_a_machine_that_slows_down(times: StepTimes) -> None:
    for _ in range(60):
        times.saw("dflash", 8, timing(verify=18.0, rest=3.0, draft=2.5))
    assert times.of_passes(8)[-1] == pytest.approx(18.0, rel=0.02)
    assert times.of_passes(64)[-1] == pytest.approx(75.0, rel=0.25)  # never chosen, slower all the same
    assert (times.of_rest("dflash"), times.of_rest(None)) == pytest.approx((3.0, 0.5))
    times.saw("dflash", 8, timing(verify=5000.0, rest=900.0))  # a hiccup
    assert times.of_passes(8)[-1] < 23 and times.of_rest("dflash") == pytest.approx(3.0)


def test_where_the_largest_stair_is_best_the_one_above_is_measured(times: StepTimes) -> None:
    auto, sure = AutoBudget(times), weights(*[0.9] * 200)
    assert auto.ceiling == 63
    assert auto.choose("dflash", sure[:63], 63)[0] == 63
    assert auto.ceiling == 95
    assert auto.choose("dflash", sure[:95], 95)[0] == 95
    auto.saw("dflash", sure[:95], list(range(96)), timing(verify=400.0, rest=1.0))
    assert times.known[-1] == 96
    assert auto.choose("dflash", sure[:95], auto.ceiling)[0] == 63  # it was too dear
    assert auto.ceiling == 95


# ---- not drafting ----


def steps_without_drafting(auto: AutoBudget, times: StepTimes, *, prob: float, drafts: int) -> list[int]:
    """How many plain steps follow each drafted one when every tree has one node of this probability."""
    pauses, waited = [], 0
    while len(pauses) < drafts:
        source, log_weights = ("dflash", weights(prob)) if auto.ceiling else (None, weights())
        if source:
            pauses.append(waited)
        waited = 0 if source else waited + 1
        auto.choose(source, log_weights, auto.ceiling)
        auto.saw(source, log_weights, [0], timing(verify=8.0, rest=6.0 if source else 0.5))
    return pauses


def test_drafting_that_does_not_pay_is_tried_more_and_more_rarely(times: StepTimes) -> None:
    auto = AutoBudget(times)
    times.saw("dflash", 1, timing(verify=8.0, rest=6.0, draft=5.5))
    pauses = steps_without_drafting(auto, times, prob=0.1, drafts=WINDOW + 6)
    assert pauses == [*[0] * WINDOW, 2, 4, *[LONGEST_PAUSE] * 4]


def test_drafting_that_pays_goes_on(times: StepTimes) -> None:
    times.saw("dflash", 1, timing(verify=8.0, rest=3.0, draft=2.5))
    for _ in range(20):
        times.saw("dflash", 8, timing(verify=12.0, rest=3.0, draft=2.5))
    auto = AutoBudget(times)
    for _ in range(30):
        assert auto.ceiling == 63
        assert auto.choose("dflash", weights(0.8, 0.6, 0.4), 63)[0] == 3
        auto.saw("dflash", weights(0.8, 0.6, 0.4), [0, 1, 2], timing(verify=12.0, rest=3.0, draft=2.5))


# ---- in a run ----


class FixedTimes(StepTimes):
    """A staircase that no step changes: small passes pay, so that budgets vary with the tree."""

    def __init__(self) -> None:
        super().__init__({1: 1.0, 2: 1.3, 4: 1.7, 8: 2.6, 16: 4.0})

    def saw(self, source: str | None, rows: int, timing: Timing, warm: bool = True) -> None:
        pass


def uneven(context: tuple[int, ...]) -> Sequence[float]:
    return [((3 * sum(context) + 5 * token + len(context)) % 7) / 2 for token in range(8)]


def decoder(**settings: object) -> TreeDecoder:
    given = {"budget": "auto", "temperature": 1.0, "seed": 4, "max_new_tokens": 40, **settings}
    target = FakeTarget(uneven, 8)
    target.times = FixedTimes()
    return TreeDecoder(target, FakeDrafter(favour(1, 2, 3)), Settings.model_validate(given))


def tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps if step.committed for token in step.committed.token_ids]


def checked(decoder: TreeDecoder) -> Trace:
    trace = load_trace(decoder.trace().to_json().encode())
    assert check_trace(trace) == []
    return trace


@pytest.mark.parametrize("method", ["ddtree", "chain"])
@pytest.mark.parametrize("drafter", ["dflash", "hybrid", "ngram"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_repeats_when_its_recorded_budgets_are_given(
    method: str, drafter: str, temperature: float
) -> None:
    if drafter == "hybrid" and temperature:
        temperature = 0.7
    first = decoder(method=method, drafter=drafter, temperature=temperature)
    steps = list(first.decode("ab"))
    trace = checked(first)
    assert trace.settings.budget == "auto"
    assert all(type(step.budget) is int and step.auto is not None for step in trace.steps)

    again = decoder(method=method, drafter=drafter, temperature=temperature)
    run = again.start("ab")
    list(again.prefill(run))
    for step in steps:
        again.settings = again.settings.updated(budget=step.budget)
        repeated = again.step(run)
        assert repeated.committed == step.committed
        assert repeated.tree == step.tree
        assert repeated.auto is None


def test_the_number_used_and_what_it_promised_are_recorded() -> None:
    auto = decoder()
    steps = list(auto.decode("ab"))
    assert len({step.budget for step in steps}) > 1
    for step in steps:
        assert step.tree is not None and step.auto is not None
        assert len(step.tree.token_ids) <= step.budget <= step.auto.ceiling
        assert step.auto.emitted >= 1 and step.auto.ms > 0
        assert (step.draft is None) == (step.auto.ceiling == 0)
    curve = budget_curve(steps, steps)
    assert curve.steps + curve.left_out == len(steps)
    written = json.loads(auto.trace().to_json())
    assert written["settings"]["budget"] == "auto"
    assert written["steps"][0]["auto"].keys() == {"ceiling", "emitted", "ms"}


def test_a_step_of_a_fixed_budget_says_nothing_of_auto() -> None:
    fixed = decoder(budget=2)
    list(fixed.decode("ab"))
    assert all("auto" not in step for step in json.loads(fixed.trace().to_json())["steps"])


def test_auto_may_begin_and_end_in_mid_run() -> None:
    changing = decoder(budget=2)
    seen = []
    for step in changing.decode("ab"):
        seen.append((step.settings.budget, step.auto is not None))
        if step.index == 1:
            changing.settings = changing.settings.updated(budget="auto")
        if step.index == 4:
            changing.settings = changing.settings.updated(budget=1)
    assert [auto for _, auto in seen[:7]] == [False, False, True, True, True, False, False]
    assert seen[0][0] == seen[1][0] == 2 and seen[5][0] == 1
    assert check_trace(changing.trace()) == []


def test_passes_are_measured_once_for_a_target_and_leave_no_trace() -> None:
    target = FakeTarget(follow([1, 2, 3, 4, 5, 6]), 8)
    settings = Settings(budget="auto", max_new_tokens=6)
    sizes = []
    for _ in range(2):
        auto = TreeDecoder(target, FakeDrafter(favour(1, 2, 3)), settings)
        assert tokens(list(auto.decode("a"))) == [1, 2, 3, 4, 5, 6]
        checked(auto)
        sizes.append(len(target.passes))
    assert target.times.measured and set(STAIRS[:2]) <= set(target.times.known)
    assert sizes[1] - sizes[0] <= 6  # the second run's steps alone


def test_a_step_that_failed_records_the_number_that_was_drafted_for() -> None:
    target = FakeTarget(uneven, 8)
    failing = TreeDecoder(target, FakeDrafter(favour(1, 2), fail_at=0), Settings(budget="auto"))
    steps = list(failing.decode("a"))
    assert steps[-1].error is not None
    assert steps[-1].budget == target.times.known[-1] - 1
    assert checked(failing).steps[-1].auto is None


def test_a_step_whose_budget_is_no_number_is_refused() -> None:
    fixed = decoder(budget=2, max_new_tokens=3)
    list(fixed.decode("ab"))
    broken = json.loads(fixed.trace().to_json())
    broken["steps"][0]["settings"]["budget"] = "auto"
    with pytest.raises(TraceError, match=r"steps\[0\]\.settings.*number used"):
        load_trace(json.dumps(broken).encode())


@pytest.mark.model
def test_a_sampled_run_of_the_default_model_repeats() -> None:
    target = ddtree.load_target()
    drafter = ddtree.load_drafter(target=target)
    settings = Settings(budget="auto", temperature=1.0, seed=3, max_new_tokens=24)
    first = TreeDecoder(target, drafter, settings)
    steps = list(first.decode("Count from one to twenty, twice."))
    checked(first)
    again = TreeDecoder(target, drafter, settings)
    run = again.start("Count from one to twenty, twice.")
    list(again.prefill(run))
    for step in steps:
        again.settings = again.settings.updated(budget=step.budget)
        repeated = again.step(run)
        assert (repeated.committed, repeated.tree) == (step.committed, step.tree)
