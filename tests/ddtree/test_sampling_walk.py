"""The sampler from logits against a float64 walk over random trees and rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_reference import DTYPES, Tree, problems, sampled_row, verify, walk

from ddtree import _kernels
from ddtree.sampling import verify_tree_greedy


@settings(max_examples=250, deadline=None)
@given(problem=problems(), dtype=st.sampled_from(DTYPES))
def test_equals_the_float64_walk(problem: dict[str, Any], dtype: torch.dtype) -> None:
    sampled = [sampled_row(row, **problem["rule"]) for row in problem["rows"]]
    assume(min(margin for _, margin in sampled) > 1e-6)
    expected = walk(
        [row for row, _ in sampled],
        problem["tree"],
        problem["coins"],
        problem["final"],
        **problem["thresholds"],
    )
    assume(expected.margin > 1e-6)
    logits = torch.tensor(problem["rows"], dtype=dtype)
    verdict = verify(
        logits,
        problem["tree"],
        problem["coins"],
        problem["final"],
        **problem["rule"],
        **problem["thresholds"],
    )
    assert verdict.accept_index == expected.path
    assert verdict.accept_token_num == len(expected.path) - 1
    assert verdict.bonus_token_id == expected.bonus
    assert verdict.bonus_prob == pytest.approx(expected.bonus_prob, rel=1e-5)
    greedy = problem["rule"]["temperature"] == 0
    assert verdict.bonus_source == ("argmax" if greedy else expected.source)
    assert verdict.residual_mass == pytest.approx(expected.residual, rel=1e-4, abs=1e-6)
    assert [tried.node for tried in verdict.decisions] == [node for node, *_ in expected.decisions]
    for tried, (_, prob, cumulative, accepted) in zip(verdict.decisions, expected.decisions, strict=True):
        assert tried.accepted == accepted
        assert tried.prob == pytest.approx(prob, rel=1e-5)
        assert tried.cumulative == pytest.approx(cumulative, rel=1e-5)
        assert tried.coin == problem["coins"][problem["tree"].parents[tried.node]]


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_a_verdict_can_be_made_again_from_what_it_reports(problem: dict[str, Any]) -> None:
    logits = torch.tensor(problem["rows"])
    thresholds = problem["thresholds"]
    verdict = verify(
        logits, problem["tree"], problem["coins"], problem["final"], **problem["rule"], **thresholds
    )
    cumulative, parent = 0.0, None
    for tried in verdict.decisions:
        if problem["tree"].parents[tried.node] != parent:
            cumulative, parent = 0.0, problem["tree"].parents[tried.node]
        cumulative += tried.prob
        assert tried.cumulative == cumulative  # to the last bit
        acc = thresholds["threshold_acc"]
        below = tried.prob > 0 and (acc == 0 or tried.coin < cumulative / acc)
        assert tried.accepted == (tried.prob > 0 and (below or tried.prob >= thresholds["threshold_single"]))
    assert verdict.bonus_prob > 0
    if verdict.bonus_source != "last_tried":
        mark = problem["final"] * verdict.residual_mass
        assert mark < verdict.bonus_cumulative
        assert verdict.bonus_cumulative - verdict.bonus_prob <= mark + 1e-6


@pytest.mark.parametrize("size", [1000, 1024, 1025, 49152])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 50},
        {"top_p": 0.9},
        {"temperature": 1.3, "top_k": 2000, "top_p": 0.8},
    ],
)
def test_large_rows(size: int, dtype: torch.dtype, rule: dict[str, Any]) -> None:
    tree = Tree([-1, 0, 0, 0, 1, 2, 3], [0, 5, 900, 17, 3, 4, 6])
    generator = torch.Generator().manual_seed(size)
    logits = (torch.randn(7, size, generator=generator) * 3).to(dtype)
    logits[:, [3, 4, 5, 6, 17, 900]] += 6
    drawn = torch.rand(7, generator=generator).tolist()
    sampled = [sampled_row(row, **({"temperature": 1.0} | rule)) for row in logits.double().tolist()]
    for final in (0.0, 0.3, 0.77, 0.999):
        expected = walk([row for row, _ in sampled], tree, drawn, final)
        verdict = verify(logits, tree, drawn, final, **rule)
        assert verdict.accept_index == expected.path
        assert verdict.bonus_prob > 0
        if expected.margin > 1e-6:
            assert verdict.bonus_token_id == expected.bonus
            assert verdict.bonus_prob == pytest.approx(expected.bonus_prob, rel=1e-5)


@pytest.mark.parametrize(
    "rule", [{}, {"temperature": 0.6}, {"top_k": 3000, "top_p": 0.97}, {"temperature": 0.0}]
)
def test_every_instruction_set_gives_the_same_bits(rule: dict[str, Any]) -> None:
    tree = Tree([-1, 0, 0, 1, 2], [0, 5, 900, 17, 3])
    best = _kernels.instruction_set()
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        logits = (torch.randn(5, 5000 + seed, generator=generator) * 3).to(DTYPES[seed % 3])
        logits[:, [3, 5, 17, 900]] += 7
        drawn = torch.rand(5, generator=generator).tolist()
        verdicts = []
        for name in ("portable", "avx2", "avx512"):
            if _kernels.use_instruction_set(name):
                verdicts.append(verify(logits, tree, drawn, 0.5, **rule))
        _kernels.use_instruction_set(best)
        assert all(verdict == verdicts[0] for verdict in verdicts)


@settings(max_examples=150, deadline=None)
@given(problem=problems(), data=st.data())
def test_a_smaller_budget_cuts_the_accepted_path(problem: dict[str, Any], data: st.DataObject) -> None:
    tree = problem["tree"]
    budget = data.draw(st.integers(0, len(tree.parents) - 1))
    small = Tree(tree.parents[: budget + 1], tree.tokens[: budget + 1])
    logits = torch.tensor(problem["rows"])
    settled = problem["rule"] | problem["thresholds"]
    whole = verify(logits, tree, problem["coins"], problem["final"], **settled)
    cut = verify(logits[: budget + 1], small, problem["coins"][: budget + 1], problem["final"], **settled)
    kept = next((i for i, node in enumerate(whole.accept_index) if node > budget), len(whole.accept_index))
    assert cut.accept_index == whole.accept_index[:kept]


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_greedy_is_a_walk_over_argmaxes(problem: dict[str, Any]) -> None:
    tree, rows = problem["tree"], problem["rows"]
    verdict = verify_tree_greedy(torch.tensor(rows), *tree.arrays())
    path, node = [0], 0
    while True:
        best = rows[node].index(max(rows[node]))
        node_after = next((child for child in tree.children[node] if tree.tokens[child] == best), None)
        if node_after is None:
            break
        node = node_after
        path.append(node)
    assert verdict.accept_index == path
    assert (verdict.bonus_token_id, verdict.bonus_cumulative, verdict.residual_mass) == (best, 1.0, 1.0)
    assert all(tried.coin == 0 for tried in verdict.decisions)
