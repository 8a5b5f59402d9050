"""The sampler from logits: the field's cases to the digit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sampling_reference import DTYPES, Tree, chain, star, verify

from ddtree import _kernels
from ddtree.sampling import SamplingFault, verify_tree, verify_tree_greedy

INF = math.inf
ALMOST_ONE = 1 - 2**-24


@pytest.fixture(params=["portable", "avx2", "avx512"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    best = _kernels.instruction_set()
    if not _kernels.use_instruction_set(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _kernels.use_instruction_set(best)


def rows_of(row: list[float], tree: Tree) -> torch.Tensor:
    """Log-probabilities, the same row at every node."""
    return torch.log(torch.tensor([row] * len(tree.parents)))


# ---- cases from the field ----


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_draft_without_mass_is_never_accepted(threshold: float) -> None:  # case 1
    tree = star([2])
    verdict = verify(rows_of([0, 1, 0], tree), tree, 0.0, threshold_single=threshold, threshold_acc=threshold)
    assert (verdict.accept_token_num, verdict.bonus_token_id) == (0, 1)


def test_a_coin_of_zero_accepts_the_first_child_with_mass() -> None:  # case 1
    tree = star([1])
    verdict = verify(rows_of([0, 0.25, 0.75], tree), tree, 0.0)
    assert verdict.accept_index == [0, 1]
    assert verdict.decisions[0].accepted


def test_the_largest_coin_accepts_a_certain_child() -> None:  # case 1
    tree = star([1])
    assert verify(rows_of([0, 1], tree), tree, ALMOST_ONE).accept_index == [0, 1]


def test_a_row_whose_children_are_all_its_mass_accepts_the_last() -> None:  # case 2, through logits
    tree = star([1, 2, 3])
    verdict = verify(rows_of([0, 0.5, 0.25, 0.24999994, 0, 0], tree), tree, ALMOST_ONE)
    assert verdict.accept_index == [0, 3]
    assert verdict.decisions[-1].cumulative == 1.0


@pytest.mark.parametrize("size", [2, 33, 1000, 1025, 49152])
def test_a_coin_of_one_gives_the_last_token_with_mass(size: int) -> None:  # case 2: no running sum is above
    logits = torch.zeros(1, size)
    logits[0, size // 2 + 1 :] = -INF
    verdict = verify(logits, star([]), 0.0, final=1.0)
    assert verdict.bonus_token_id == size // 2
    assert verdict.bonus_prob > 0


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_final_coin_gives_a_token_with_mass(seed: int) -> None:  # case 2, at V=49152
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 49152, generator=generator) * 4
    logits[0, 40000:] = -INF
    verdict = verify(logits, star([]), 0.0, final=ALMOST_ONE)
    assert verdict.bonus_token_id < 40000
    assert verdict.bonus_prob > 0


@pytest.mark.parametrize("size", [4, 64, 2048])
def test_buckets_are_half_open(size: int) -> None:
    """A coin on the edge belongs to the bucket that begins there."""
    tree = star([0])
    for token in {0, 1, size // 2, size - 1}:
        assert verify(torch.zeros(1, size), star([]), 0.0, final=token / size).bonus_token_id == token
    assert verify(torch.zeros(2, size), tree, 1 / size).accept_index == [0]
    assert verify(torch.zeros(2, size), tree, (1 - 2**-20) / size).accept_index == [0, 1]


@pytest.mark.parametrize(
    ("size", "children", "coin"), [(64, 40, 0.99), (64, 33, 0.99), (1024, 64, 0.9), (1024, 257, 0.9)]
)
def test_many_siblings(size: int, children: int, coin: float) -> None:  # case 4
    tree = star(range(children))
    verdict = verify(torch.zeros(children + 1, size), tree, coin)
    assert verdict.accept_token_num == 0
    assert verdict.bonus_token_id == children
    assert len(verdict.decisions) == children
    assert verdict.bonus_source == "residual"
    assert verdict.residual_mass == pytest.approx(1 - children / size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (INF, r"\+inf")])
@pytest.mark.parametrize("size", [5, 1024, 3000])
def test_a_fault_in_a_visited_row_names_its_node(
    instruction_set: str, dtype: torch.dtype, value: float, word: str, size: int
) -> None:  # case 5
    tree = chain([1])
    for token in {0, 3, size - 1, size // 2}:
        logits = torch.zeros(2, size, dtype=dtype)
        logits[0, 1] = 30  # node 1 is visited
        logits[1, token] = value
        for rule in ({}, {"top_k": 2, "top_p": 0.5}, {"temperature": 0.0}):
            with pytest.raises(SamplingFault, match=f"row of node 1 holds {word} .*token {token}") as fault:
                verify(logits, tree, 0.5, **rule)
            assert fault.value.node == 1


def test_a_row_of_nothing_is_a_fault() -> None:  # case 5
    with pytest.raises(SamplingFault, match="row of node 0 has no mass"):
        verify(torch.full((1, 70), -INF), star([]), 0.5)
    logits = torch.full((1, 3), math.nan)
    with pytest.raises(SamplingFault, match=r"row of node 0 holds NaN .first at token 0"):
        verify(logits, star([]), 0.5)


def test_faults_in_rows_that_are_never_visited_change_nothing() -> None:  # case 5
    tree = Tree([-1, 0, 0, 1, 2], [0, 1, 2, 3, 4])
    logits = torch.zeros(5, 6)
    logits[0, 2] = 40  # node 2 is accepted, node 1 never entered
    clean = verify(logits, tree, 0.5, final=0.3)
    assert clean.accept_index[:2] == [0, 2]
    for node in {1, 3, 4} - set(clean.accept_index):
        for value in (math.nan, INF):
            logits[node] = value
            assert verify(logits, tree, 0.5, final=0.3) == clean


def broken(changes: dict[str, dict[int, int]], nodes: int = 4) -> list[torch.Tensor]:
    arrays = {"token": [1, 2, 3, -1], "sibling": [-1] * 4}
    for name, entries in changes.items():
        for node, value in entries.items():
            arrays[name][node] = value
    return [torch.arange(nodes), torch.tensor(arrays["token"]), torch.tensor(arrays["sibling"])]


BROKEN = [
    {"sibling": {2: 2}},
    {"token": {1: 0}},
    {"token": {0: 9}},
    {"token": {0: 1, 1: -1}, "sibling": {1: 3, 2: 3}},
    {"token": {3: -5}},
]


@pytest.mark.parametrize("changes", BROKEN)
def test_a_broken_topology_is_refused(changes: dict[str, dict[int, int]]) -> None:  # case 6
    arrays = broken(changes)
    with pytest.raises(ValueError, match=r"node \d"):
        verify_tree_greedy(torch.zeros(4, 5), *arrays)
    status = torch.full((1,), -9, dtype=torch.int32)
    rule: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    thresholds: dict[str, Any] = {"threshold_single": 1.0, "threshold_acc": 1.0}
    drawn = torch.zeros(4)
    verdict = verify_tree(
        torch.zeros(4, 5), *arrays, coins=drawn, final_coin=0.0, status=status, **rule, **thresholds
    )
    assert verdict is None
    assert status.item() % 8 == 7


def test_equal_siblings_are_refused() -> None:  # case 7
    with pytest.raises(ValueError, match="node 2 has the token of an earlier sibling"):
        verify(torch.zeros(3, 3), star([1, 1]), 0.45)


def test_a_token_outside_the_vocabulary_is_refused_where_it_is_tried() -> None:
    tree = star([1, 7])
    assert verify(torch.tensor([[0.0, 50.0, 0.0]] * 3), tree, 0.5).accept_index == [0, 1]
    with pytest.raises(SamplingFault, match="node 2 is no token of the vocabulary"):
        verify(torch.zeros(3, 3), tree, 0.9)


def test_thresholds() -> None:  # case 8
    tree = star([0])
    logits = rows_of([0.3, 0.7], tree)
    assert verify(logits, tree, 0.5, threshold_acc=0.5).accept_index == [0, 1]
    assert verify(logits, tree, 0.5).accept_index == [0]
    assert verify(logits, tree, 0.5, threshold_single=0.25).accept_index == [0, 1]
    assert verify(rows_of([0, 1], tree), tree, 0.0, threshold_acc=0.0).accept_index == [0]
    unlikely = torch.tensor([[math.log(1e-30), 0.0]] * 2)
    verdict = verify(unlikely, tree, ALMOST_ONE, threshold_acc=0.0)
    assert verdict.accept_index == [0, 1]
    assert verdict.decisions[0].prob == pytest.approx(1e-30, rel=1e-5)


def test_greedy_takes_the_argmax_child_wherever_it_stands() -> None:  # case 10
    tree = star([1, 0])
    logits = rows_of([0.51, 0.49], tree)
    for verdict in (verify_tree_greedy(logits, *tree.arrays()), verify(logits, tree, 0.5, temperature=0.0)):
        assert verdict.accept_index == [0, 2]
        assert [(tried.node, tried.prob, tried.accepted) for tried in verdict.decisions] == [
            (1, 0.0, False),
            (2, 1.0, True),
        ]
        assert (verdict.bonus_token_id, verdict.bonus_source, verdict.bonus_prob) == (0, "argmax", 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 100, 1024, 5000])
def test_equal_maxima_give_the_lowest_id(
    instruction_set: str, dtype: torch.dtype, size: int
) -> None:  # case 10
    for first in {0, 1, size // 2, size - 2}:
        logits = torch.zeros(1, size, dtype=dtype)
        logits[0, first] = logits[0, size - 1] = 2
        logits[0, first + 1 :: 7] = 2
        assert verify_tree_greedy(logits, *star([]).arrays()).bonus_token_id == first


@pytest.mark.parametrize("temperature", [1e-40, 1e-12, 9e-6, 0.0])
def test_the_limit_of_temperature_is_greedy(temperature: float) -> None:  # case 26
    generator = torch.Generator().manual_seed(3)
    tree = Tree([-1, 0, 0, 1, 1, 3], [0, 5, 6, 7, 8, 9])
    logits = torch.randn(6, 50, generator=generator) * 1e30
    verdict = verify(logits, tree, 0.999, final=0.999, temperature=temperature)
    greedy = verify_tree_greedy(logits, *tree.arrays())
    assert (verdict.accept_index, verdict.bonus_token_id) == (greedy.accept_index, greedy.bonus_token_id)


def test_a_small_temperature_does_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0, 2.9e38]])
    verdict = verify(logits, star([]), 0.0, final=ALMOST_ONE, temperature=1e-5)
    assert (verdict.bonus_token_id, verdict.bonus_prob) == (0, 1.0)


@pytest.mark.parametrize(
    "rule",
    [{"temperature": -0.1}, {"temperature": math.nan}, {"temperature": INF}, {"top_k": -1}, {"top_p": 0.0},
     {"top_p": 1.1}, {"threshold_single": 1.5}, {"threshold_acc": -0.1}, {"threshold_acc": math.nan}],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(rule: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(rule))} is"):
        verify(torch.zeros(1, 4), star([]), 0.5, **rule)


def test_shapes_and_dtypes_are_checked() -> None:
    tree = star([1])
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        verify(torch.zeros(2, 4, dtype=torch.float64), tree, 0.5)
    with pytest.raises(ValueError, match=r"candidates must be int64 \[3\]"):
        verify(torch.zeros(3, 4), tree, 0.5)
    with pytest.raises(ValueError, match="coins must be"):
        verify(torch.zeros(2, 4), tree, [0.5])
    with pytest.raises(ValueError, match="tree is empty"):
        verify_tree_greedy(torch.zeros(0, 4), *[torch.zeros(0, dtype=torch.int64)] * 3)


def test_rows_may_be_a_view() -> None:
    generator = torch.Generator().manual_seed(0)
    tree = Tree([-1, 0, 0, 1], [0, 1, 2, 3])
    wide = torch.randn(4, 200, generator=generator)
    expected = verify(wide[:, 20:120].contiguous(), tree, 0.4, final=0.6)
    assert verify(wide[:, 20:120], tree, 0.4, final=0.6) == expected
    assert verify(wide[:, 20:120].T.contiguous().T, tree, 0.4, final=0.6) == expected
