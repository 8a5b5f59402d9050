"""What-if by budget: by hand, and against building each smaller tree and walking it with the real kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour
from test_statistics import chain, made

from ddtree import trace
from ddtree.decoder import TreeDecoder
from ddtree.replay import rebuild_tree
from ddtree.retrieve import compile_ddtree_retrieve
from ddtree.run import cut_committed
from ddtree.sampling import TreeVerdict, verify_tree
from ddtree.settings import Settings
from ddtree.whatif import budget_curve, budget_of, with_budget

VOCAB = 8


def rows(context: tuple[int, ...]) -> list[float]:
    """A target that likes what the drafter drafts, often enough."""
    generator = torch.Generator().manual_seed(sum(context) * 31 + len(context))
    logits = torch.randn(VOCAB, generator=generator)
    logits[[5, 2, 6, 3][len(context) % 4]] += 1.5
    return logits.tolist()


def run(**settings: Any) -> trace.Trace:
    decoder = TreeDecoder(
        FakeTarget(rows, VOCAB, stop=(1,)),
        FakeDrafter(favour(5, 2, 6, 3)),
        Settings(max_new_tokens=23, **settings),
    )
    list(decoder.decode("a"))
    return decoder.trace()


def walked(step: trace.Step, context: list[int], budget: int) -> tuple[TreeVerdict, list[int]]:
    """The smaller tree, built from the step's candidate rows and walked by the kernel with the target's own
    rows and the step's coins: (its verdict, the tokens of its path and bonus)."""
    assert step.sampling is not None
    rebuilt = rebuild_tree(
        step.draft.rows if step.draft else trace.CandidateRows(top_log_probs=[], top_token_ids=[]), budget
    )
    arrays = compile_ddtree_retrieve(rebuilt)
    tokens = [context[-1], *rebuilt.token_ids.tolist()]
    seen: list[tuple[int, ...]] = [tuple(context)]
    for node, parent in enumerate(rebuilt.parents.tolist()[1:], 1):
        seen.append((*seen[parent], tokens[node]))
    settings = step.settings
    verdict = verify_tree(
        torch.tensor([rows(each) for each in seen]),
        torch.tensor(tokens),
        arrays.retrieve_next_token,
        arrays.retrieve_next_sibling,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        coins=torch.tensor(step.sampling.uniform_samples[: len(tokens)], dtype=torch.float32),
        final_coin=step.sampling.final_uniform,
        threshold_single=settings.threshold_single,
        threshold_acc=settings.threshold_acc,
    )
    path = [tokens[node] for node in verdict.accept_index[1:]]
    return verdict, [*path, verdict.bonus_token_id]


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 31},
        {"budget": 15, "top_p": 0.9, "top_k": 5},
        {"budget": 15, "threshold_acc": 0.6},
        {"budget": 15, "drafter": "ngram"},
        {"budget": 15, "drafter": "hybrid"},
        {"budget": 4, "method": "chain"},
        {"budget": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_every_smaller_budget_gives_what_its_own_tree_gives(
    settings: dict[str, Any], temperature: float
) -> None:
    met: Counter[str] = Counter()
    for seed in range(4):
        given = run(temperature=temperature, seed=seed, **settings)
        context = list(given.prompt.token_ids)
        for step in given.steps:
            assert step.committed is not None
            room = given.settings.max_new_tokens - (len(context) - len(given.prompt.token_ids))
            drafted = budget_of(step)
            assert drafted is not None
            for budget in range(drafted + 1):
                found = with_budget(step, budget)
                verdict, tokens = walked(step, context, budget)
                counted, _ = cut_committed(tokens, given.stop_token_ids, room)
                assert found.path == verdict.accept_index
                assert found.accepted_drafts == min(verdict.accept_token_num, len(counted))
                assert found.emitted == len(counted)
                if found.bonus_token_id is not None:
                    assert found.bonus_token_id == verdict.bonus_token_id
                cut = len(found.path) < len(with_budget(step, drafted).path)
                met["cut" if cut else "whole", found.bonus_token_id is not None] += 1
            context += step.committed.token_ids
    if temperature == 0:
        assert met["cut", False] == met["whole", False] == 0  # greedy: always known
    else:
        assert met["cut", True] == 0  # the child that was accepted is lost
    if settings["budget"]:
        assert met["cut", temperature == 0] > 0 and met["whole", True] > 0


def sampled(walk: list[int], rule: str = "target_only") -> trace.Step:
    """Root 0 with children 1, 2, 5; 2 has 3, 4 and 6."""
    step = made([-1, 0, 0, 2, 2, 0, 2], [0, 1, 0, 1, 2, 2], walk)
    sampling = trace.Sampling.model_validate(
        {
            "uniform_samples": [0.5] * 7,
            "final_uniform": 0.5,
            "threshold_single": 1.0,
            "threshold_acc": 1.0,
            "rule": rule,
        }
    )
    draft = trace.Draft(
        source="dflash",
        temperature=1.0,
        rows=trace.CandidateRows(top_log_probs=[[0.0]], top_token_ids=[[1]]),
    )
    return step.model_copy(
        update={"sampling": sampling, "draft": draft, "settings": Settings(budget=6, seed=1)}
    )


@pytest.mark.parametrize(
    ("budget", "path", "bonus", "greedy_bonus"),
    [
        (0, [0], None, 2),  # token ids of `made` are node numbers; greedy would have gone on with node 2's
        (1, [0], None, 2),
        (2, [0, 2], None, 4),
        (3, [0, 2], None, 4),
        (4, [0, 2, 4], 99, 99),  # node 4 has no children: none was lost
        (6, [0, 2, 4], 99, 99),
    ],
)
def test_a_path_is_cut_at_its_first_node_beyond(
    budget: int, path: list[int], bonus: int | None, greedy_bonus: int
) -> None:
    found = with_budget(sampled([0, 2, 4]), budget)
    assert (found.path, found.bonus_token_id) == (path, bonus)
    assert (found.accepted_drafts, found.emitted) == (len(path) - 1, len(path))
    assert with_budget(sampled([0, 2, 4], "greedy"), budget).bonus_token_id == greedy_bonus


def test_the_bonus_is_unknown_where_a_rejected_child_was_lost() -> None:
    """The walk ends at the root, whose last child is node 5: without it the residual is another."""
    assert [with_budget(sampled([0]), budget).bonus_token_id for budget in (4, 5)] == [None, 99]
    assert with_budget(sampled([0], "greedy"), 0).bonus_token_id == 99


@pytest.mark.parametrize("budget", [-1, 7])
def test_a_budget_that_the_step_cannot_tell_of_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match=f"budget is {budget}; step 0 can tell of 0 to 6"):
        with_budget(sampled([0]), budget)


def test_a_failed_step_has_nothing_to_cut() -> None:
    failed = trace.Step(index=3, root=trace.Root(token_id=0, text="r", position=0), settings=Settings())
    assert budget_of(failed) is None
    with pytest.raises(ValueError, match="step 3 failed"):
        with_budget(failed, 0)


# ---- over many steps ----


def drafted(length: int, accepted: int, total: float | None, index: int = 0) -> trace.Step:
    """A chain of `length` nodes, its budget, `accepted` of them; `total` ms."""
    step = chain(length, accepted)
    timing = None
    if total is not None:
        timing = trace.Timing(
            draft=1.0, build=0, encode=0, verify=total - 1, sample=0, commit=0, other=0, total=total
        )
    draft = trace.Draft(
        source="dflash",
        temperature=1.0,
        rows=trace.CandidateRows(top_log_probs=[[0.0]], top_token_ids=[[1]]),
    )
    update = {"index": index, "draft": draft, "settings": Settings(budget=length), "timing_ms": timing}
    return step.model_copy(update=update)


def test_one_budget_is_charged_its_own_time_and_names_no_best() -> None:
    steps = [drafted(3, accepted, total) for accepted, total in ((0, 10), (3, 20), (1, 30))]
    curve = budget_curve(steps, steps)
    assert [point.emitted for point in curve.points] == [3, 5, 6, 7]
    assert [point.accepted_drafts for point in curve.points] == [0, 2, 3, 4]
    assert [point.ms for point in curve.points] == [60, 60, 60, 60]  # 3 means of 20
    assert curve.tokens_per_second(curve.points[-1]) == pytest.approx(7 / 0.060)
    assert [curve.emitted(point) for point in curve.points][::3] == [1.0, pytest.approx(7 / 3)]
    assert (curve.measured, curve.best) == ([3], None)
    (time,) = curve.times
    assert (time.source, time.rows, time.steps) == ("dflash", 4, 3)
    assert (time.draft, time.verify, time.total) == (1.0, 19.0, 20.0)
    assert [point.ms for point in budget_curve(steps[:1], steps).points] == [20] * 4


def test_times_are_a_staircase_in_rows() -> None:
    """Rows 4 take 8 ms, rows 8 take 20: budgets 1..3 are charged 8, budgets 4..7 are charged 20, and no line
    runs between them."""
    small = [drafted(3, 1, 8.0) for _ in range(3)]
    large = [drafted(7, 2, 20.0) for _ in range(3)]
    curve = budget_curve(large, [*small, *large])
    assert [point.ms for point in curve.points] == [24.0] * 4 + [60.0] * 4
    assert [point.emitted for point in curve.points] == [3, 6, 9, 9, 9, 9, 9, 9]
    assert (curve.measured, curve.best) == ([3, 7], 2)
    speeds = [curve.tokens_per_second(point) for point in curve.points]
    assert speeds[2] == pytest.approx(9 / 0.024) and speeds[7] == pytest.approx(9 / 0.060)


def test_a_row_count_of_few_steps_is_not_taken_as_measured() -> None:
    small = [drafted(3, 1, 8.0) for _ in range(2)]
    large = [drafted(7, 2, 20.0) for _ in range(3)]
    curve = budget_curve(large, [*small, *large])
    assert [point.ms for point in curve.points] == [60.0] * 8
    assert (curve.measured, curve.best) == ([7], None)


def test_nothing_drafted_is_charged_the_time_of_plain_steps() -> None:
    plain = [made([-1], [], [0]) for _ in range(3)]  # 8 ms each
    large = [drafted(3, 2, 20.0) for _ in range(3)]
    curve = budget_curve(large, [*plain, *large])
    assert [point.ms for point in curve.points] == [24.0, 60.0, 60.0, 60.0]
    assert curve.measured == [0, 3]


def test_all_points_stand_on_the_same_contexts() -> None:
    """Two steps of budget 3, two of 7: the curve goes to 7 on two contexts. With three of 3 it goes to 3."""
    small, large = [drafted(3, 1, 8.0) for _ in range(3)], [drafted(7, 2, 20.0) for _ in range(2)]
    curve = budget_curve([*small[:2], *large], [])
    assert (len(curve.points), curve.steps, curve.left_out) == (8, 2, 2)
    curve = budget_curve([*small, *large], [])
    assert (len(curve.points), curve.steps, curve.left_out) == (4, 5, 0)
    assert [point.emitted for point in curve.points] == [5, 10, 12, 12]


def test_a_step_without_a_time_leaves_no_speed() -> None:
    curve = budget_curve([drafted(2, 1, None)], [])
    assert [point.ms for point in curve.points] == [None] * 3
    assert curve.tokens_per_second(curve.points[0]) is None and curve.best is None


def test_no_steps_have_no_curve() -> None:
    curve = budget_curve([], [])
    assert (curve.steps, curve.points, curve.times, curve.best) == (0, [], [], None)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_last_point_is_the_run_itself(temperature: float) -> None:
    given = run(temperature=temperature, seed=5, budget=15)
    curve = budget_curve(given.steps, given.steps)
    last = curve.points[-1]
    assert given.summary is not None
    assert (curve.steps, last.budget) == (given.summary.steps, 15)
    assert (last.emitted, last.accepted_drafts) == (given.summary.committed, given.summary.accepted_drafts)
    assert curve.emitted(last) == given.summary.tau
    assert last.ms == pytest.approx(sum(step.timing_ms.total for step in given.steps if step.timing_ms))
    emitted = [point.emitted for point in curve.points]
    assert emitted == sorted(emitted) and emitted[0] == curve.steps
