"""The best-first tree against brute force: all paths, sorted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ddtree
from ddtree.tree import DraftTree, build_ddtree_tree, build_ddtree_tree_from_topk

INF = float("inf")


@dataclass(frozen=True)
class Rows:
    """Candidate rows as Python lists."""

    log_probs: list[list[float]]
    token_ids: list[list[int]]
    child_rows: list[list[int]] | None

    def build(self, budget: int) -> DraftTree:
        children = None if self.child_rows is None else torch.tensor(self.child_rows)
        log_probs = torch.tensor(self.log_probs, dtype=torch.float64)
        return build_ddtree_tree(log_probs, torch.tensor(self.token_ids), children, budget)

    def child_row(self, row: int, rank: int) -> int:
        if self.child_rows is not None:
            return self.child_rows[row][rank]
        return row + 1 if row + 1 < len(self.log_probs) else -1


@dataclass(frozen=True, order=True)
class Path:
    """Sorts as the tree is filled: higher log-weight first, then the smaller path of ranks."""

    minus_log_weight: float
    ranks: tuple[int, ...]
    row: int = 0
    token_id: int = 0


def all_paths(rows: Rows, longest: int) -> list[Path]:
    """Every path of at most `longest` nodes, in the order in which the tree must take them."""
    paths: list[Path] = []
    level: list[tuple[float, tuple[int, ...], int]] = [(0.0, (), 0)]
    for _ in range(longest):
        following = []
        for weight, ranks, row in level:
            if row < 0:
                continue
            for rank, log_prob in enumerate(rows.log_probs[row]):
                if log_prob == -INF:
                    continue
                below = weight + min(log_prob, 0.0)
                path = (*ranks, rank)
                paths.append(Path(-below, path, row, rows.token_ids[row][rank]))
                following.append((below, path, rows.child_row(row, rank)))
        level = following
    return sorted(paths)


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The path of ranks of every node."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents.tolist()[1:], tree.ranks.tolist(), strict=True):
        paths.append((*paths[parent], rank))
    return paths[1:]


def assert_is_best(tree: DraftTree, best: list[Path]) -> None:
    assert tree.num_nodes == len(best)
    assert paths_of(tree) == [path.ranks for path in best]
    assert tree.log_weights.tolist() == [-path.minus_log_weight for path in best]
    assert tree.token_ids.tolist() == [path.token_id for path in best]
    assert tree.rows.tolist() == [path.row for path in best]
    assert tree.depths.tolist() == [len(path.ranks) for path in best]


@st.composite
def candidate_rows(draw: st.DrawFn, conditioned: bool = False) -> Rows:
    """Rows whose values are often equal, often 0, sometimes -0.0, -inf or a rounding above 0."""
    rows, ranks = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    coarse = st.sampled_from([0.0, -0.0, 1e-6, 5e-7, -0.25, -0.5, -1.0, -3.0, -INF])
    values = draw(st.sampled_from([coarse, st.floats(-5, 0), st.floats(-1e300, 0)]))
    row = st.lists(values, min_size=ranks, max_size=ranks)
    log_probs = [sorted(draw(row), key=lambda value: -min(value, 0.0)) for _ in range(rows)]
    token_ids = [draw(st.permutations(range(ranks + 2)))[:ranks] for _ in range(rows)]
    child = st.lists(st.integers(-1, rows - 1), min_size=ranks, max_size=ranks)
    child_rows = [draw(child) for _ in range(rows)] if conditioned else None
    return Rows(log_probs, token_ids, child_rows)


@settings(max_examples=400, deadline=None)
@given(candidate_rows(), st.integers(0, 60))
def test_tree_is_the_sorted_top_of_all_paths(rows: Rows, budget: int) -> None:
    assert_is_best(rows.build(budget), all_paths(rows, longest=4)[:budget])


@settings(max_examples=400, deadline=None)
@given(candidate_rows(conditioned=True), st.integers(0, 6))
def test_child_rows_are_followed(rows: Rows, budget: int) -> None:
    assert_is_best(rows.build(budget), all_paths(rows, longest=6)[:budget])


@settings(max_examples=200, deadline=None)
@given(candidate_rows(conditioned=True), st.integers(0, 40), st.integers(0, 40))
def test_a_smaller_budget_gives_the_first_nodes(rows: Rows, budget: int, larger: int) -> None:
    small, large = rows.build(min(budget, larger)), rows.build(max(budget, larger))
    nodes = small.num_nodes
    assert small.parents.tolist() == large.parents.tolist()[: nodes + 1]
    for field in ("token_ids", "depths", "ranks", "rows", "log_weights"):
        assert getattr(small, field).tolist() == getattr(large, field).tolist()[:nodes]


@settings(max_examples=100, deadline=None)
@given(candidate_rows(), st.integers(0, 40))
def test_every_node_sees_its_ancestors_and_itself(rows: Rows, budget: int) -> None:
    tree = rows.build(budget)
    parents = tree.parents.tolist()
    for node, row in enumerate(tree.visibility().tolist()):
        seen = {node}
        while parents[min(seen)] >= 0:
            seen.add(parents[min(seen)])
        assert {other for other, visible in enumerate(row) if visible} == seen


def test_worked_example() -> None:
    log_probs = torch.log(torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[10, 11], [20, 21], [30, 31]]), 5)
    arrays = ddtree.compile_ddtree_retrieve(tree)
    assert tree.token_ids.tolist() == [10, 20, 30, 11, 21]
    assert tree.depths.tolist() == [1, 2, 3, 1, 2]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 0, 1]
    assert [round(weight, 3) for weight in tree.log_weights.tolist()] == [
        -0.357,
        -0.868,
        -1.091,
        -1.204,
        -1.273,
    ]
    assert arrays.retrieve_next_token.tolist() == [1, 2, 3, -1, -1, -1]
    assert arrays.retrieve_next_sibling.tolist() == [-1, 4, 5, -1, -1, -1]


def test_exact_ties_take_the_smaller_path() -> None:  # case 14
    log_probs = torch.log(torch.tensor([[0.5, 0.25, 0.25]] * 2))
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[1, 2, 3], [4, 5, 6]]), 5)
    arrays = ddtree.compile_ddtree_retrieve(tree)
    assert tree.token_ids.tolist() == [1, 4, 2, 3, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 0, 1]
    assert arrays.retrieve_next_token.tolist() == [1, 2, -1, -1, -1, -1]
    assert arrays.retrieve_next_sibling.tolist() == [-1, 3, 5, 4, -1, -1]


def test_minus_infinity_never_enters() -> None:  # case 15
    log_probs = torch.log_softmax(torch.tensor([[0.0, -INF, -INF, -INF]]), dim=-1)
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[3, 0, 0, 0]]), 3)
    assert tree.num_nodes == 1
    assert tree.token_ids.tolist() == [3]
    assert tree.log_weights.tolist() == [0.0]


def test_the_heap_drains_early() -> None:  # case 17
    log_probs = torch.log(torch.tensor([[0.7, 0.3]] * 2))
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[0, 1]] * 2), 100)
    assert tree.num_nodes == 6
    assert tree.depths.tolist() == [1, 2, 1, 2, 2, 2]
    assert tree.budget == 100


def test_token_0_is_a_token() -> None:  # case 21
    log_probs = torch.log(torch.tensor([[0.9, 0.05], [0.9, 0.05], [0.9, 0.05]]))
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[5, 1], [0, 1], [7, 1]]), 3)
    assert tree.token_ids.tolist() == [5, 0, 7]
    assert tree.num_nodes == 3


@pytest.mark.parametrize("shape", [(0, 1), (0, 64), (3, 0)])
def test_without_candidates_the_root_is_alone(shape: tuple[int, int]) -> None:
    tree = build_ddtree_tree_from_topk(torch.empty(shape), torch.empty(shape, dtype=torch.int64), 7)
    assert tree.num_nodes == 0
    assert tree.parents.tolist() == [-1]
    assert tree.token_ids.tolist() == []
    assert tree.visibility().tolist() == [[True]]


def test_budget_0_is_the_root_alone() -> None:
    tree = build_ddtree_tree_from_topk(torch.tensor([[-0.5]]), torch.tensor([[4]]), 0)
    assert (tree.num_nodes, tree.parents.tolist()) == (0, [-1])


def test_one_candidate_a_row_is_a_chain() -> None:
    log_probs = torch.full((80, 1), math.log(0.5))
    tree = build_ddtree_tree_from_topk(log_probs, torch.arange(80)[:, None], 1024)
    assert tree.token_ids.tolist() == list(range(80))
    assert tree.depths.tolist() == list(range(1, 81))
    assert tree.parents.tolist() == list(range(-1, 80))


def test_budget_1024_over_deep_rows() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(64, 200, generator=generator) * 4
    log_probs, token_ids = torch.log_softmax(logits, dim=-1).topk(50)
    tree = build_ddtree_tree_from_topk(log_probs, token_ids, 1024)
    weights = tree.log_weights
    assert tree.num_nodes == 1024
    assert bool((weights[:-1] >= weights[1:]).all())
    taken = set(paths_of(tree))
    assert len(taken) == 1024
    edges = [(*path[:-1], path[-1] + 1) for path in taken] + [(*path, 0) for path in taken if len(path) < 64]
    left_out = [path for path in edges if path not in taken and path[-1] < 50]
    heaviest = max(sum(log_probs[depth, rank].item() for depth, rank in enumerate(path)) for path in left_out)
    assert heaviest <= weights[-1].item()


def test_equal_weights_everywhere_fill_the_first_subtree() -> None:
    log_probs = torch.zeros(70, 3)
    tree = build_ddtree_tree_from_topk(log_probs, torch.arange(3).expand(70, 3), 200)
    rows = Rows(log_probs[:3].tolist(), [[0, 1, 2]] * 3, None)
    assert_is_best(rows.build(39), all_paths(rows, longest=3))
    assert paths_of(tree)[:70] == [(0,) * depth for depth in range(1, 71)]
    assert paths_of(tree)[70:72] == [(*(0,) * 69, 1), (*(0,) * 69, 2)]


def test_log_weights_are_float64_sums_of_the_float32_log_probs() -> None:
    log_probs = torch.tensor([[-0.1, -3.0], [-0.2, -2.0]])
    tree = build_ddtree_tree_from_topk(log_probs, torch.tensor([[1, 2], [3, 4]]), 2)
    first = log_probs[0, 0].double()
    assert tree.log_weights.dtype == torch.float64
    assert tree.log_weights.tolist() == [first.item(), (first + log_probs[1, 0].double()).item()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_and_strides(dtype: torch.dtype) -> None:
    log_probs = torch.tensor([[-0.5, -1.0], [-0.25, -2.0]], dtype=dtype)
    token_ids = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    tree = build_ddtree_tree_from_topk(log_probs.t().contiguous().t(), token_ids.t().contiguous().t(), 3)
    assert tree.token_ids.tolist() == [1, 3, 2]
    assert tree.log_weights.tolist() == [-0.5, -0.75, -1.0]


def test_a_rounding_above_0_counts_as_0() -> None:
    tree = build_ddtree_tree_from_topk(torch.tensor([[0.0, 1e-6]]), torch.tensor([[1, 2]]), 2)
    assert tree.log_weights.tolist() == [0.0, 0.0]


BAD_ROWS = {
    "nan": ([[-0.5, -1.0], [float("nan"), -1.0]], r"row 1, column 0 is not a number"),
    "nan after -inf": ([[-0.5, -INF], [-INF, float("nan")]], r"row 1, column 1 is not a number"),
    "+inf": ([[INF, -1.0], [-1.0, -2.0]], r"row 0, column 0 is \+inf"),
    "above 0": ([[-0.5, -1.0], [1.1e-6, -1.0]], r"row 1, column 0 is a log-probability above 0"),
    "ascending": ([[-0.5, -0.4], [-1.0, -1.0]], r"row 0, column 1 is larger than the one before"),
}


@pytest.mark.parametrize(("log_probs", "message"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_faulty_rows_are_named(log_probs: list[list[float]], message: str, dtype: torch.dtype) -> None:
    for budget in (0, 1, 9):
        with pytest.raises(ValueError, match=message):
            build_ddtree_tree_from_topk(
                torch.tensor(log_probs, dtype=dtype), torch.tensor([[1, 2], [3, 4]]), budget
            )


def test_a_token_twice_in_a_row_is_named() -> None:
    log_probs = torch.full((3, 64), -5.0)
    token_ids = torch.arange(3 * 64).reshape(3, 64) * 1_000_003
    token_ids[1, 40] = token_ids[1, 17]
    token_ids[2, 3] = token_ids[0, 3]  # another row's: fine
    with pytest.raises(ValueError, match="row 1, column 40 has a token id that stands earlier in its row"):
        build_ddtree_tree_from_topk(log_probs, token_ids, 4)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_first_repeated_token_is_named(data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, 2**62), min_size=5, max_size=5)
    rows = data.draw(st.lists(tokens, min_size=1, max_size=4))
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(1, 4))
    rows[row][column] = rows[row][data.draw(st.integers(0, column - 1))]
    repeated = [(r, c) for r in range(len(rows)) for c in range(5) if rows[r][c] in rows[r][:c]]
    where = "row {}, column {} has".format(*repeated[0])
    with pytest.raises(ValueError, match=where):
        build_ddtree_tree_from_topk(torch.full((len(rows), 5), -2.0), torch.tensor(rows), 3)


def test_other_faults_of_the_call() -> None:
    log_probs, token_ids = torch.tensor([[-0.5, -1.0]]), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="budget is -1"):
        build_ddtree_tree_from_topk(log_probs, token_ids, -1)
    with pytest.raises(ValueError, match=r"\[1, 2\] and \[2, 1\]"):
        build_ddtree_tree_from_topk(log_probs, token_ids.t(), 1)
    with pytest.raises(ValueError, match=r"child_rows is \[2\]"):
        build_ddtree_tree(log_probs, token_ids, torch.tensor([0, 0]), 1)
    with pytest.raises(ValueError, match=r"top_log_probs must be torch\.float32, not torch\.int64"):
        build_ddtree_tree_from_topk(token_ids, token_ids, 1)
    with pytest.raises(ValueError, match=r"top_token_ids must be torch\.int64, not torch\.float32"):
        build_ddtree_tree_from_topk(log_probs, log_probs, 1)
    with pytest.raises(ValueError, match="row 0, column 1 belongs to a negative token id"):
        build_ddtree_tree_from_topk(log_probs, torch.tensor([[1, -2]]), 1)
    with pytest.raises(ValueError, match="row 0, column 1 has a child row outside the rows"):
        build_ddtree_tree(log_probs, token_ids, torch.tensor([[0, 1]]), 1)


def test_a_row_may_be_its_own_child() -> None:
    log_probs, token_ids = torch.tensor([[-0.5, -3.0]]), torch.tensor([[8, 9]])
    tree = build_ddtree_tree(log_probs, token_ids, torch.tensor([[0, -1]]), 1000)
    assert tree.num_nodes == 1000
    assert max(tree.depths.tolist()) > 400
    assert tree.rows.tolist() == [0] * 1000


def test_from_parents() -> None:
    tree = DraftTree.from_parents([-1, 0, 0, 1, 0], [5, 0, 7, 6])
    assert tree.depths.tolist() == [1, 1, 2, 1]
    assert tree.ranks.tolist() == [0, 1, 0, 2]
    assert tree.token_ids.tolist() == [5, 0, 7, 6]
    with pytest.raises(ValueError, match=r"parents\[2\] is 2"):
        DraftTree.from_parents([-1, 0, 2], [1, 2])
    with pytest.raises(ValueError, match=r"parents\[0\] is 0"):
        DraftTree.from_parents([0, 0], [1])
    with pytest.raises(ValueError, match="need 3 parents"):
        DraftTree.from_parents([-1, 0], [1, 2])


@pytest.mark.proof
@pytest.mark.timeout(3600)
@settings(max_examples=5_000, deadline=None)
@given(candidate_rows(conditioned=True), st.integers(0, 7))
def test_many_trees_are_the_sorted_top_of_all_paths(rows: Rows, budget: int) -> None:
    assert_is_best(rows.build(budget), all_paths(rows, longest=7)[:budget])
