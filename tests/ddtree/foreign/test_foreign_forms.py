"""What a value means: rows, arrays, trees, rounds; every fault at its node; what is lacking is missing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddtree import DraftTree, build_ddtree_tree_from_topk, compile_ddtree_retrieve
from ddtree.foreign import ForeignError, recognise
from ddtree.foreign.trees import encoding_steps, structure

LOGS = np.log([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2]])
IDS = [[10, 11], [20, 21], [30, 31]]


def kinds(value: Any) -> list[tuple[int, str]]:
    return [(fault.node, fault.kind) for fault in recognise(value).trees[0].faults]


def test_the_worked_example_from_rows() -> None:
    found = recognise({"top_log_probs": LOGS.tolist(), "top_token_ids": IDS, "budget": 5})
    tree = found.trees[0]
    built = build_ddtree_tree_from_topk(torch.tensor(LOGS), torch.tensor(IDS), 5)
    assert found.kind == "topk"
    assert found.missing == ["target probabilities", "coins"]
    assert tree.token_ids == built.token_ids.tolist() == [10, 20, 30, 11, 21]
    assert tree.parents == [-1, 0, 1, 2, 0, 1]
    assert tree.log_weights == built.log_weights.tolist()
    assert (tree.next_token, tree.next_sibling) == ([1, 2, 3, -1, -1, -1], [-1, 4, 5, -1, -1, -1])
    assert tree.faults == []


def test_rows_without_ids_give_the_same_tree_and_no_tokens() -> None:
    found = recognise({"top_log_probs": LOGS, "budget": 5})
    assert found.trees[0].token_ids is None
    assert found.trees[0].parents == [-1, 0, 1, 2, 0, 1]
    assert "token ids" in found.missing


@given(st.lists(st.integers(0, 40), max_size=40))
def test_the_encoding_shown_is_the_encoding_of_a_run(draws: list[int]) -> None:
    parents = [-1, *(draw % (i + 1) for i, draw in enumerate(draws))]
    arrays = compile_ddtree_retrieve(DraftTree.from_parents(parents, range(len(draws))))
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for step in encoding_steps(parents):
        (next_token if step.array == "retrieve_next_token" else next_sibling)[step.at] = step.node
    assert next_token == arrays.retrieve_next_token.tolist()
    assert next_sibling == arrays.retrieve_next_sibling.tolist()
    tree = recognise({"parents": parents, "token_ids": list(range(len(draws)))}).trees[0]
    assert (tree.next_token, tree.next_sibling, tree.faults) == (next_token, next_sibling, [])
    assert [step.node for step in tree.encoding] == list(range(1, len(parents)))


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(-3, n + 1), min_size=n, max_size=n) for _ in range(2)])
    )
)
def test_any_pointers_can_be_drawn(pointers: tuple[list[int], list[int]]) -> None:
    found = structure(*pointers)
    drawn = [child for children in found.children for child in children]
    assert sorted([0, *drawn, *found.lost]) == list(range(len(found.parents)))  # each node once
    for node, parent in enumerate(found.parents):
        assert parent == -1 or (
            node in found.children[parent] and found.depths[node] == found.depths[parent] + 1
        )
    assert bool(found.encoding) <= (found.faults == [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"retrive_next_token": [1, 0, -1], "retrive_next_sibling": [-1, 2, -1]}, [(1, "cycle")]),
        ({"retrieve_next_token": [1, -1], "retrieve_next_sibling": [-1, 9]}, [(1, "out_of_range")]),
        (
            {
                "retrieve_next_token": [1, -1, -1],
                "retrieve_next_sibling": [-1, 2, -1],
                "candidates": [0, 5, 5],
            },
            [(2, "sibling_tokens_equal")],
        ),
        (
            {"retrieve_next_token": [1, 2, -1], "retrieve_next_sibling": [-1] * 3, "positions": [7, 8, 8]},
            [(2, "depth_disagrees")],
        ),
        (
            {"retrieve_next_token": [1, -1], "retrieve_next_sibling": [-1, -1], "retrieve_index": [4, 6]},
            [(1, "wrong_index")],
        ),
        ({"parents": [-1, 2, 1], "tokens": [5, 6]}, [(1, "unreachable"), (2, "unreachable")]),
        ({"parents": [-1, 0, 7], "tokens": [5, 6]}, [(2, "parent_out_of_range"), (2, "unreachable")]),
        ({"parents": [0, 0], "tokens": [5]}, [(0, "wrong_sentinel")]),
        ({"parents": [-1, 0], "tokens": [5], "depths": [2]}, [(1, "depth_disagrees")]),
    ],
)
def test_every_fault_stands_at_its_node(value: dict[str, Any], expected: list[tuple[int, str]]) -> None:
    found = kinds(value)
    assert set(expected) <= set(found)
    assert {node for node, _ in found} <= {node for node, _ in expected} | {0, 1, 2}


def sglang(**changes: Any) -> dict[str, Any]:
    """Two batch rows of three nodes, as SGLang keeps them: flat tokens and positions, global indices."""
    return {
        "draft_token": [9, 5, 6, 8, 5, 7],
        "retrive_index": [[0, 1, 2], [3, 4, 5]],
        "retrive_next_token": [[1, -1, -1], [1, 2, -1]],
        "retrive_next_sibling": [[-1, 2, -1], [-1, -1, -1]],
        "positions": [10, 11, 11, 20, 21, 22],
        "predicts": [6, 0, 3, 5, 7, 4],
        "accept_index": [[0, 2, -1], [3, 4, 5]],
        "accept_token_num": [1, 2],
        **changes,
    }


def test_the_buffers_of_sglang() -> None:
    found = recognise(sglang())
    first, second = found.trees
    assert (first.root_token, first.token_ids, first.accept_index, first.bonus_token_id) == (
        9,
        [5, 6],
        [0, 2],
        3,
    )
    assert (second.parents, second.accept_index, second.bonus_token_id) == ([-1, 0, 1], [0, 1, 2], 4)
    assert second.retrieve_index == [3, 4, 5]
    assert first.faults == second.faults == []
    assert found.acceptance is not None and found.acceptance.per_position == [2, 1]
    assert set(found.missing) == {
        "log-weights",
        "the drafter's log-probabilities",
        "target probabilities",
        "coins",
    }


def test_what_the_buffers_of_sglang_may_get_wrong() -> None:
    trees = recognise(sglang(accept_token_num=[1, 1], accept_index=[[0, 2, 1], [3, 4, 5]])).trees
    assert [fault.kind for fault in trees[0].faults] == ["count_disagrees", "path_broken"]
    assert trees[0].accept_index is None
    assert [fault.kind for fault in trees[1].faults] == ["count_disagrees"]


ROUNDS = [
    {
        "accepted_indices": [0, 1, 3],
        "tree": {"node_token_ids": [5, 6, 7], "node_depths": [1, 1, 2], "parents": [-1, 0, 0, 1]},
    },
    {"accepted_indices": [0], "tree": {"node_token_ids": [4], "node_depths": [1], "parents": [-1, 0]}},
]


def test_rounds_and_their_output() -> None:
    found = recognise({"round_trees": ROUNDS, "output_ids": [[1, 2, 5, 7, 8, 9]]})
    assert [tree.accept_index for tree in found.trees] == [[0, 1, 3], [0]]
    assert [(tree.root_token, tree.bonus_token_id) for tree in found.trees] == [(2, 8), (8, 9)]
    assert found.acceptance is not None
    assert found.acceptance.unconditional() == [0.5, 0.5]
    bare = recognise(ROUNDS)
    assert [tree.root_token for tree in bare.trees] == [None, None]
    assert "root and bonus tokens" in bare.missing
    other = recognise({"round_trees": ROUNDS, "output_ids": [1, 2, 3]})
    assert "root and bonus tokens (the rounds do not continue output_ids)" in other.missing


def test_output_ids_are_placed_once_or_not_at_all() -> None:
    """Rounds that accept nothing continue anything: only their number says where they stand."""
    tree = {"node_token_ids": [4], "node_depths": [1], "parents": [-1, 0]}
    empty = [{"accepted_indices": [0], "tree": tree}] * 3000
    trees = recognise({"round_trees": empty, "output_ids": list(range(100_000))}).trees
    assert (trees[0].root_token, trees[-1].bonus_token_id) == (96_999, 99_999)
    cut = recognise({"round_trees": ROUNDS[:1], "output_ids": [1, 2, 5, 7]}).trees[0]  # the end came first
    assert (cut.root_token, cut.bonus_token_id) == (2, None)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([[1.0]], "an array without a name"),
        ({"foo": 1}, "none of the names foo"),
        ({"format": "ddtree-trace"}, "open it with Import"),
        ({"top_log_probs": LOGS}, "budget is missing"),
        ({"top_log_probs": LOGS, "budget": 5000}, "budget is 5000; use 0 to 1024"),
        ({"top_log_probs": [[-1.0, -0.5]], "top_token_ids": [[1, 2]], "budget": 3}, "row 0, column 1"),
        ({"top_log_probs": [[-1.0], [-1.0, -2.0]], "budget": 3}, "ragged"),
        ({"top_log_probs": LOGS, "top_token_ids": [[1]], "budget": 3}, "must be alike"),
        ({"retrieve_next_token": [1, -1]}, "retrieve_next_sibling is missing"),
        ({"retrieve_next_token": [1, -1], "retrieve_next_sibling": [1]}, "has 1 entries"),
        ({"retrieve_next_token": ["a"], "retrieve_next_sibling": [1]}, "whole numbers, not 'a'"),
        ({"retrieve_next_token": [0.5], "retrieve_next_sibling": [1]}, "whole numbers, not 0.5"),
        ({"parents": [-1, 0, 0], "tokens": [1]}, "do not fit"),
        ({"parents": [-1] + [0] * 2000}, "at most 1024"),
        ({"parents": None}, "must be an array of numbers, not None"),
        ({"round_trees": 5}, "round_trees must be a list"),
        ({"round_trees": [{"tree": {"parents": [-1]}}]}, "round 0: tree needs parents and node_token_ids"),
        ({"parents": [-1, 0], "tokens": [10**30]}, "whole numbers"),
        (None, "an array without a name"),
    ],
)
def test_what_is_none_of_them_is_one_sentence(value: Any, part: str) -> None:
    with pytest.raises(ForeignError) as refusal:
        recognise(value)
    assert part in str(refusal.value)


def test_null_is_minus_infinity_and_what_was_not_read_is_said() -> None:
    found = recognise({"top_log_probs": [[0, None]], "top_token_ids": [[0, 1]], "budget": 3, "foo": 1})
    assert found.trees[0].size == 1
    assert found.trees[0].log_weights == [0.0]
    assert found.ignored == ["foo"]
    assert math.isfinite(found.trees[0].draft_log_probs[0])  # type: ignore[index]
