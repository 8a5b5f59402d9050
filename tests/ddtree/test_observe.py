"""Views of visited rows against torch in float64, and the same bits as the walk."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sampling_reference import DTYPES, Tree, verify

from ddtree import _kernels
from ddtree.observe import RowView, observe_rows
from ddtree.sampling import SamplingFault

RULES: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.6, "top_k": 0, "top_p": 1.0},
    {"temperature": 1.4, "top_k": 60, "top_p": 0.9},
    {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
]


def look(
    logits: torch.Tensor,
    nodes: list[int],
    rule: dict[str, Any] = RULES[0],
    children: list[list[int]] | None = None,
    draft: torch.Tensor | None = None,
    **more: Any,
) -> list[RowView]:
    rows = list(range(len(nodes))) if draft is not None else [-1] * len(nodes)
    given = {"draft_rows": rows, "draft_temperature": 1.0} | more
    return observe_rows(
        logits, nodes, children=children or [[]] * len(nodes), draft_logits=draft, **rule, **given
    )


def random_rows(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 32, 100, 1024, 1025, 49152])
def test_rows_at_temperature_one(size: int, dtype: torch.dtype) -> None:
    logits = random_rows(3, size).to(dtype)
    draft = random_rows(2, size, seed=1).to(dtype)
    children = [[0, size - 1], [size // 2]]
    views = look(logits, [2, 0], children=children, draft=draft)
    for view, node, tokens, drafted in zip(views, [2, 0], children, draft, strict=True):
        probs = torch.softmax(logits[node].double(), -1)
        order = torch.sort(logits[node], descending=True, stable=True).indices[:8]
        assert view.node == node
        assert view.token_ids == order.tolist()
        assert view.probs == view.raw_probs == pytest.approx(probs[order].tolist(), rel=1e-5)
        assert view.child_probs == view.child_raw_probs == pytest.approx(probs[tokens].tolist(), rel=1e-5)
        assert view.entropy == pytest.approx(-(probs * probs.log()).sum().item(), rel=1e-5, abs=1e-6)
        variation = (probs - torch.softmax(drafted.double(), -1)).abs().sum().item() / 2
        assert view.total_variation == pytest.approx(variation, abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_are_those_of_the_walk(rule: dict[str, Any], dtype: torch.dtype) -> None:
    tree = Tree([-1, 0, 0, 0, 1, 2, 3], [0, 5, 900, 17, 3, 4, 6])
    for seed in range(10):
        logits = random_rows(7, 3000, seed).to(dtype)
        logits[:, [3, 4, 5, 6, 17, 900]] += 6
        coins = torch.rand(7, generator=torch.Generator().manual_seed(seed)).tolist()
        verdict = verify(logits, tree, coins, 0.5, **rule)
        children = [[tree.tokens[child] for child in tree.children[node]] for node in verdict.accept_index]
        views = look(logits, verdict.accept_index, rule, children=children)
        shown = {
            child: prob
            for node, view in zip(verdict.accept_index, views, strict=True)
            for child, prob in zip(tree.children[node], view.child_probs, strict=True)
        }
        for tried in verdict.decisions:
            assert tried.prob == shown[tried.node]  # to the last bit
        last = views[-1]
        if verdict.bonus_token_id in last.token_ids:
            assert verdict.bonus_prob == last.probs[last.token_ids.index(verdict.bonus_token_id)]
        raw = torch.softmax(logits[verdict.accept_index].double(), -1)
        for view, probs in zip(views, raw, strict=True):
            assert view.raw_probs == pytest.approx(probs[view.token_ids].tolist(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_precision_number_is_read_right(dtype: torch.dtype) -> None:
    """Neighbours together, subnormal ones too: order and probabilities are those of the row in float32."""
    best = _kernels.instruction_set()
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    rows = numbers[: len(numbers) // 60 * 60].reshape(-1, 60)
    for name in ("portable", "avx2", "avx512"):
        if _kernels.use_instruction_set(name):
            nodes = list(range(len(rows)))
            assert look(rows, nodes, count=60) == look(rows.float(), nodes, count=60)
    _kernels.use_instruction_set(best)


def test_greedy_rows_are_one_hot() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    [view] = look(logits, [0], RULES[3], children=[[2, 1]])
    assert view.token_ids == [1, 2, 3, 0]
    assert view.probs == [1, 0, 0, 0]
    assert view.child_probs == [0, 1]
    assert view.raw_probs[0] == view.raw_probs[1] == pytest.approx(0.3995, abs=1e-4)


@pytest.mark.parametrize("size", [8, 40, 1024, 5000])
def test_equal_tokens_stand_by_id(size: int) -> None:
    assert look(torch.zeros(1, size), [0])[0].token_ids == list(range(8))
    logits = torch.zeros(1, size)
    logits[0, [size - 1, 3]] = 1
    assert look(logits, [0], count=4)[0].token_ids == [3, size - 1, 0, 1]


def test_a_short_row_shows_what_it_has() -> None:
    [view] = look(torch.tensor([[0.0, -math.inf, 1.0]]), [0], children=[[1]])
    assert view.token_ids == [2, 0]
    assert view.child_probs == [0.0]
    assert view.entropy == pytest.approx(0.5822, abs=1e-4)


def test_a_certain_row_has_no_entropy() -> None:
    logits = torch.full((1, 50), -math.inf)
    logits[0, 7] = 3
    [view] = look(logits, [0])
    assert (view.token_ids, view.probs, view.entropy) == ([7], [1.0], 0.0)


def test_total_variation() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    draft = torch.log(torch.tensor([[0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]))
    views = look(logits, [0, 1], draft=draft)
    assert [view.total_variation for view in views] == pytest.approx([1.0, 0.0], abs=1e-6)
    assert look(logits, [0])[0].total_variation is None
    views = look(logits, [0, 1], draft=draft, draft_rows=[-1, 0])
    assert views[0].total_variation is None
    assert views[1].total_variation == pytest.approx(0.5)


def test_the_drafter_may_be_of_another_dtype_and_temperature() -> None:
    logits, draft = random_rows(1, 2000), random_rows(1, 2000, seed=5)
    [view] = look(logits.bfloat16(), [0], draft=draft, draft_temperature=0.5)
    probs = torch.softmax(logits.bfloat16().double(), -1)
    other = torch.softmax(draft.double() / 0.5, -1)
    assert view.total_variation == pytest.approx((probs - other).abs().sum().item() / 2, abs=1e-5)


def test_a_faulty_row_names_its_node() -> None:
    logits = torch.zeros(3, 10)
    logits[2, 4] = math.nan
    assert look(logits, [0, 1])[1].entropy == pytest.approx(math.log(10))
    with pytest.raises(SamplingFault, match=r"row of node 2 holds NaN .first at token 4"):
        look(logits, [0, 2])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"nodes must lie in 0\.\.1"):
        look(torch.zeros(2, 4), [2])
    with pytest.raises(ValueError, match="equally long"):
        look(torch.zeros(2, 4), [0, 1], children=[[]])
    with pytest.raises(ValueError, match=r"draft_logits must be \[rows, 4\]"):
        look(torch.zeros(2, 4), [0], draft=torch.zeros(1, 5))
    with pytest.raises(ValueError, match="draft_rows must lie in"):
        look(torch.zeros(2, 4), [0], draft=torch.zeros(1, 4), draft_rows=[1])


@pytest.mark.parametrize("rule", RULES)
def test_every_instruction_set_gives_the_same_bits(rule: dict[str, Any]) -> None:
    best = _kernels.instruction_set()
    logits, draft = random_rows(4, 5001).bfloat16(), random_rows(4, 5001, seed=9).bfloat16()
    found = []
    for name in ("portable", "avx2", "avx512"):
        if _kernels.use_instruction_set(name):
            found.append(look(logits, [0, 1, 2, 3], rule, children=[[5]] * 4, draft=draft))
    _kernels.use_instruction_set(best)
    assert all(views == found[0] for views in found)
