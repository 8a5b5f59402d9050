"""The sampler from probabilities: SGLang's arrays, the field's cases, faults in a batch, a float64 walk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_reference import Tree, chain, star, trees, walk

from ddtree import tree_speculative_sampling_target_only
from ddtree.sampling import SamplingFault

ALMOST_ONE = 1 - 2**-24
UNTOUCHED = -9


@dataclass
class Outputs:
    predicts: torch.Tensor
    accept_index: torch.Tensor
    accept_token_num: torch.Tensor

    @classmethod
    def fresh(cls, batch: int, nodes: int, path: int) -> Outputs:
        fill = {"fill_value": UNTOUCHED, "dtype": torch.int32}
        return cls(
            torch.full((batch * nodes,), **fill),
            torch.full((batch, path), **fill),
            torch.full((batch,), **fill),
        )

    def bonus(self, batch_row: int) -> int:
        """The token at the last slot of the path."""
        last = self.accept_index[batch_row, self.accept_token_num[batch_row]]
        return int(self.predicts[last])


def arguments(
    probs: torch.Tensor, batch: Sequence[Tree], coins: torch.Tensor, finals: torch.Tensor
) -> dict[str, torch.Tensor]:
    count, nodes, _ = probs.shape
    arrays = [torch.stack(part) for part in zip(*(tree.arrays() for tree in batch), strict=True)]
    return {
        "candidates": arrays[0],
        "retrieve_index": torch.arange(count * nodes).reshape(count, nodes),
        "retrieve_next_token": arrays[1],
        "retrieve_next_sibling": arrays[2],
        "uniform_samples": coins,
        "uniform_samples_for_final_sampling": finals,
        "target_probs": probs,
        "draft_probs": torch.full_like(probs[:1, :1], math.nan),
    }


def sample(row: Sequence[float], tree: Tree, coin: float, final: float = 0.0, **rule: Any) -> tuple[int, int]:
    """(accepted drafts, bonus token) of one tree that has the same row at every node."""
    nodes = len(tree.parents)
    probs = torch.tensor([[row] * nodes], dtype=torch.float32)
    out = Outputs.fresh(1, nodes, nodes)
    given = arguments(probs, [tree], torch.full((1, nodes), coin), torch.tensor([final]))
    tree_speculative_sampling_target_only(**vars(out), **given, **rule)
    return int(out.accept_token_num), out.bonus(0)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_zero_mass_drafts(threshold: float) -> None:  # case 1
    assert sample([0, 1, 0], star([2]), 0.0, threshold_single=threshold) == (0, 1)
    assert sample([0, 1, 0], star([2]), 0.0, threshold_single=threshold, threshold_acc=0.0) == (0, 1)
    assert sample([0, 0.25, 0.75], star([1]), 0.0)[0] == 1
    assert sample([0, 1], star([1]), ALMOST_ONE)[0] == 1


def test_exhausted_support_gives_the_last_tried_child_with_mass() -> None:  # case 2
    row = [0, 0.5, 0.25, 0.24999994, 0, 0]
    assert sample(row, star([1, 2, 3]), ALMOST_ONE) == (0, 3)
    assert sample(row, star([1, 2, 3, 5]), ALMOST_ONE) == (0, 3)
    assert sample(row, star([3, 2, 5, 1, 4]), ALMOST_ONE, final=ALMOST_ONE) == (0, 1)


@pytest.mark.parametrize("total", [0.5, 0.999, 1.0, 1.001, 3.0])
@pytest.mark.parametrize("size", [7, 1024, 49152])
def test_rows_need_not_add_up_to_one(size: int, total: float) -> None:  # case 2: the last id with mass
    generator = torch.Generator().manual_seed(size)
    row = torch.rand(size, generator=generator)
    row[-2:] = 0
    row *= total / row.sum()
    for final in (0.0, 0.5, ALMOST_ONE, 1.0):
        _, bonus = sample(row.tolist(), star([]), 0.0, final=final)
        assert row[bonus] > 0
    assert bonus == size - 3


@pytest.mark.parametrize(
    ("size", "children", "coin"), [(64, 40, 0.99), (64, 33, 0.99), (1024, 64, 0.9), (1024, 257, 0.9)]
)
def test_many_siblings(size: int, children: int, coin: float) -> None:  # case 4
    assert sample([1 / size] * size, star(range(children)), coin) == (0, children)


def test_equal_siblings_count_once_where_nothing_is_validated() -> None:  # case 7
    row, tree = [0.5, 0.3, 0.2], star([1, 1])
    with pytest.raises(ValueError, match="batch row 0: node 2 has the token of an earlier sibling"):
        sample(row, tree, 0.45)
    status = torch.full((1,), UNTOUCHED, dtype=torch.int32)
    assert sample(row, tree, 0.45, status=status)[0] == 0
    assert status.item() == 0
    assert sample(row, star([1, 1, 2]), 0.45, status=status) == (1, 0)  # token 2's bucket begins at .3


def test_thresholds() -> None:  # case 8
    assert sample([0.3, 0.7], star([0]), 0.5, threshold_acc=0.5)[0] == 1
    assert sample([0.3, 0.7], star([0]), 0.5, threshold_acc=1.0)[0] == 0
    assert sample([0.0, 1.0], star([0]), 0.0, threshold_acc=0.0)[0] == 0
    assert sample([1e-30, 1.0], star([0]), 0.0, threshold_acc=0.0)[0] == 1
    with pytest.raises(ValueError, match=r"threshold_acc is 1\.5"):
        sample([0.3, 0.7], star([0]), 0.5, threshold_acc=1.5)


def test_outputs_are_those_of_sglang() -> None:
    """Slots of the path get the token after them; what is not used keeps the caller's values."""
    tree = Tree([-1, 0, 0, 2, 3, 2], [9, 1, 2, 3, 4, 0])
    rows = torch.zeros(1, 6, 6)
    rows[0, 0, 2] = rows[0, 2, 3] = rows[0, 3, 5] = rows[0, 1, 1] = 1
    out = Outputs.fresh(1, 10, 4)
    given = arguments(rows, [tree], torch.full((1, 6), 0.5), torch.tensor([0.5]))
    given["retrieve_index"] = torch.tensor([[4, 0, 6, 8, 1, 2]])
    tree_speculative_sampling_target_only(**vars(out), **given)
    assert out.accept_index.tolist() == [[4, 6, 8, UNTOUCHED]]
    assert out.accept_token_num.tolist() == [2]
    expected = [UNTOUCHED] * 10
    expected[4], expected[6], expected[8] = 2, 3, 5
    assert out.predicts.tolist() == expected


def test_a_full_path_draws_from_the_whole_row() -> None:
    """S - 1 drafts at most: the row after them is not tried, though it has children."""
    tree = chain([0, 0, 0])
    probs = torch.full((1, 4, 2), 0.5)
    for path, accepted in ((1, 0), (2, 1), (3, 2), (4, 3), (6, 3)):
        out = Outputs.fresh(1, 4, path)
        given = arguments(probs, [tree], torch.zeros(1, 4), torch.tensor([0.1]))
        tree_speculative_sampling_target_only(**vars(out), **given)
        assert out.accept_token_num.item() == accepted
        assert out.bonus(0) == 0  # a rejected 0 would leave only token 1


@pytest.mark.parametrize("older", ["index", "next_token", "next_sibling"])
def test_the_older_spelling_of_keywords(older: str) -> None:
    tree = star([1])
    given: dict[str, Any] = arguments(
        torch.tensor([[[0.0, 1.0]] * 2]), [tree], torch.zeros(1, 2), torch.zeros(1)
    )
    out = Outputs.fresh(1, 2, 2)
    renamed = dict(given)
    renamed[f"retrive_{older}"] = renamed.pop(f"retrieve_{older}")
    tree_speculative_sampling_target_only(**vars(out), **renamed, deterministic=True)
    assert out.accept_token_num.tolist() == [1]
    with pytest.raises(TypeError, match=f"retrieve_{older} is given twice"):
        tree_speculative_sampling_target_only(
            **vars(out), **given, **{f"retrive_{older}": given["candidates"]}
        )


def test_it_can_be_called_by_position() -> None:
    given = arguments(torch.tensor([[[0.0, 1.0]] * 2]), [star([1])], torch.zeros(1, 2), torch.zeros(1))
    out = Outputs.fresh(1, 2, 2)
    tree_speculative_sampling_target_only(*vars(out).values(), *given.values(), 1.0, 1.0, True)
    assert out.accept_index.tolist() == [[0, 1]]


def faulty_batch() -> tuple[dict[str, torch.Tensor], dict[int, int]]:
    """Six batch rows of chains of two; what goes wrong where: batch row -> 8 * node + kind."""
    probs = torch.full((6, 3, 4), 0.25)
    probs[:, 0, 1] = probs[:, 0].sum(-1)  # every walk reaches node 1
    probs[1, 1, 2] = math.nan
    probs[2, 0, 3] = math.inf
    probs[3, 1, 3] = -0.5
    probs[4, 1] = 0
    given = arguments(probs, [chain([1, 2])] * 6, torch.zeros(6, 3), torch.full((6,), 0.5))
    return given, {1: 8 + 1, 2: 2, 3: 8 + 3, 4: 8 + 4}


def test_faulty_rows_leave_their_outputs_and_the_others_alone() -> None:  # case 5
    given, faults = faulty_batch()
    status = torch.full((6,), UNTOUCHED, dtype=torch.int32)
    out = Outputs.fresh(6, 3, 3)
    tree_speculative_sampling_target_only(**vars(out), **given, status=status)
    assert status.tolist() == [faults.get(row, 0) for row in range(6)]
    healthy = Outputs.fresh(6, 3, 3)
    clean = dict(given) | {"target_probs": torch.nan_to_num(given["target_probs"], posinf=1).abs() + 0.01}
    tree_speculative_sampling_target_only(**vars(healthy), **clean)
    for row in range(6):
        slots = slice(3 * row, 3 * row + 3)
        if row in faults:
            assert out.predicts[slots].tolist() == out.accept_index[row].tolist() == [UNTOUCHED] * 3
            assert out.accept_token_num[row] == UNTOUCHED
        else:
            assert out.accept_index[row].tolist() == healthy.accept_index[row].tolist()


def test_without_status_a_fault_names_batch_row_and_node() -> None:  # case 5
    given, _ = faulty_batch()
    out = Outputs.fresh(6, 3, 3)
    with pytest.raises(SamplingFault, match=r"batch row 1, node 1 holds NaN .first at token 2") as fault:
        tree_speculative_sampling_target_only(**vars(out), **given)
    assert (fault.value.batch_row, fault.value.node) == (1, 1)
    assert out.accept_token_num[5] == 2
    assert out.accept_token_num[1] == UNTOUCHED


@pytest.mark.parametrize(
    ("array", "node", "value"),
    [
        ("retrieve_next_sibling", 2, 2),
        ("retrieve_next_token", 1, 0),
        ("retrieve_next_token", 0, 9),
        ("retrieve_next_sibling", 1, 3),
    ],
)
def test_a_broken_topology_is_refused_before_anything_is_written(
    array: str, node: int, value: int
) -> None:  # case 6
    probs = torch.full((3, 4, 4), 0.25)
    given = arguments(probs, [star([1, 2, 3])] * 3, torch.zeros(3, 4), torch.zeros(3))
    given[array][1, node] = value
    if array == "retrieve_next_sibling" and node == 1:
        given["retrieve_next_sibling"][1, 2] = 3  # two nodes with the same next sibling
        given["retrieve_next_token"][1, 0] = 1
        given["retrieve_next_token"][1, 1] = 2
    out = Outputs.fresh(3, 4, 4)
    with pytest.raises(ValueError, match=r"batch row 1: node \d"):
        tree_speculative_sampling_target_only(**vars(out), **given)
    assert out.accept_token_num.tolist() == [UNTOUCHED] * 3
    status = torch.zeros(3, dtype=torch.int32)
    tree_speculative_sampling_target_only(**vars(out), **given, status=status)
    assert [entry % 8 for entry in status.tolist()] == [0, 7, 0]
    assert out.accept_token_num.tolist() == [1, UNTOUCHED, 1]


def test_a_slot_outside_predicts_is_a_fault() -> None:
    given = arguments(torch.full((2, 2, 2), 0.5), [star([0])] * 2, torch.zeros(2, 2), torch.zeros(2))
    given["retrieve_index"][1, 1] = 4
    out = Outputs.fresh(2, 2, 2)
    with pytest.raises(SamplingFault, match="retrieve_index at batch row 1, node 1 lies outside predicts"):
        tree_speculative_sampling_target_only(**vars(out), **given)
    assert out.predicts[2:].tolist() == [UNTOUCHED] * 2


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("candidates", torch.zeros(1, 2, dtype=torch.int32)),
        ("uniform_samples", torch.zeros(1, 3)),
        ("target_probs", torch.zeros(1, 2, 2, dtype=torch.float64)),
        ("predicts", torch.zeros(2, dtype=torch.int64)),
        ("status", torch.zeros(2, dtype=torch.int32)),
    ],
)
def test_shapes_and_dtypes_are_checked_by_name(name: str, wrong: torch.Tensor) -> None:
    given = arguments(torch.full((1, 2, 2), 0.5), [star([0])], torch.zeros(1, 2), torch.zeros(1))
    everything = vars(Outputs.fresh(1, 2, 2)) | given | {name: wrong}
    with pytest.raises(ValueError, match=f"{name} must be"):
        tree_speculative_sampling_target_only(**everything)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.sampled_from([2, 3, 8, 33]))
    first = draw(trees(size, most_nodes=8))
    batch = [first]
    for _ in range(draw(st.integers(0, 2))):  # of the same number of nodes
        order = draw(st.permutations(range(size)))
        batch.append(Tree(first.parents, [order[token] for token in first.tokens]))
    nodes = len(first.parents)
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    rows = draw(st.lists(weights, min_size=len(batch) * nodes, max_size=len(batch) * nodes))
    coin = st.integers(0, 2**24 - 1).map(lambda n: n * 2.0**-24)
    probs = torch.tensor(rows, dtype=torch.float32)
    return {
        "batch": batch,
        "probs": (probs / probs.sum(-1, keepdim=True)).reshape(len(batch), nodes, size),
        "coins": draw(st.lists(coin, min_size=len(batch) * nodes, max_size=len(batch) * nodes)),
        "finals": draw(st.lists(coin, min_size=len(batch), max_size=len(batch))),
        "path": draw(st.integers(1, nodes)),
        "thresholds": {
            "threshold_single": draw(st.sampled_from([1.0, 1.0, 0.45, 0.0])),
            "threshold_acc": draw(st.sampled_from([1.0, 1.0, 0.65, 0.0])),
        },
    }


@settings(max_examples=200, deadline=None)
@given(problem=batches())
def test_equals_the_float64_walk(problem: dict[str, Any]) -> None:
    batch, probs = problem["batch"], problem["probs"]
    count, nodes, _ = probs.shape
    coins = torch.tensor(problem["coins"]).reshape(count, nodes)
    out = Outputs.fresh(count, nodes, problem["path"])
    given = arguments(probs, batch, coins, torch.tensor(problem["finals"]))
    tree_speculative_sampling_target_only(**vars(out), **given, **problem["thresholds"])
    for row, tree in enumerate(batch):
        expected = walk(
            probs[row].double().tolist(),
            tree,
            coins[row].tolist(),
            problem["finals"][row],
            **problem["thresholds"],
            most_accepted=problem["path"] - 1,
        )
        assume(expected.margin > 1e-7)
        accepted = len(expected.path) - 1
        assert out.accept_token_num[row] == accepted
        slots = [row * nodes + node for node in expected.path]
        assert out.accept_index[row].tolist() == slots + [UNTOUCHED] * (problem["path"] - 1 - accepted)
        tokens = [tree.tokens[node] for node in expected.path[1:]] + [expected.bonus]
        assert [int(out.predicts[slot]) for slot in slots] == tokens
        untouched = set(range(row * nodes, (row + 1) * nodes)) - set(slots)
        assert all(out.predicts[slot] == UNTOUCHED for slot in untouched)
