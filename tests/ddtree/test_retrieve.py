"""Encoding, and every fault that arrays from anywhere can have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.retrieve import check_retrieve, compile_ddtree_retrieve, validate_topology
from ddtree.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn, most: int = 30) -> DraftTree:
    nodes = draw(st.integers(0, most))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes + 1))]
    return DraftTree.from_parents(parents, draw(st.permutations(range(nodes))))


def children_by_pointers(next_token: list[int], next_sibling: list[int]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for parent, child in enumerate(next_token):
        while child != -1:
            children.setdefault(parent, []).append(child)
            child = next_sibling[child]
    return children


@settings(max_examples=300, deadline=None)
@given(trees(), st.integers(0, 9), st.integers(0, 5000))
def test_encoding_visits_every_node_once(tree: DraftTree, spare: int, offset: int) -> None:
    arrays = compile_ddtree_retrieve(tree, tree.num_nodes + spare, offset)
    next_token, next_sibling = arrays.retrieve_next_token.tolist(), arrays.retrieve_next_sibling.tolist()
    children = children_by_pointers(next_token, next_sibling)
    parents = tree.parents.tolist()
    expected: dict[int, list[int]] = {}
    for node in range(1, tree.num_nodes + 1):
        expected.setdefault(parents[node], []).append(node)
    assert children == expected
    assert arrays.retrieve_index.tolist() == [offset + i for i in range(tree.num_nodes + spare + 1)]
    assert next_token[tree.num_nodes + 1 :] == [-1] * spare
    assert next_sibling[tree.num_nodes + 1 :] == [-1] * spare


@settings(max_examples=200, deadline=None)
@given(trees(), st.integers(0, 4))
def test_our_own_arrays_have_no_fault(tree: DraftTree, spare: int) -> None:
    arrays = compile_ddtree_retrieve(tree, tree.num_nodes + spare)
    pointers = (arrays.retrieve_next_token, arrays.retrieve_next_sibling)
    tokens = torch.tensor([5, *tree.token_ids.tolist(), *[0] * spare])
    assert check_retrieve(*pointers) == []
    assert (
        check_retrieve(*pointers, tree.num_nodes, tree.parents, tree.depths, tree.log_weights, tokens) == []
    )
    validate_topology(*pointers)
    validate_topology(*pointers, tokens)


def test_first_child_and_siblings() -> None:  # case 19
    arrays = compile_ddtree_retrieve(DraftTree.from_parents([-1, 0, 0, 1, 0], [1, 2, 3, 4]))
    assert arrays.retrieve_next_token.tolist() == [1, 3, -1, -1, -1]
    assert arrays.retrieve_next_sibling.tolist() == [-1, 2, 4, -1, -1]
    assert arrays.retrieve_index.tolist() == [0, 1, 2, 3, 4]


def test_the_root_alone() -> None:
    arrays = compile_ddtree_retrieve(DraftTree.from_parents([-1], []), budget=2)
    assert arrays.retrieve_next_token.tolist() == [-1, -1, -1]
    assert arrays.retrieve_next_sibling.tolist() == [-1, -1, -1]


def test_a_budget_below_the_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="budget 1 is too small for a tree of 2 nodes"):
        compile_ddtree_retrieve(DraftTree.from_parents([-1, 0, 0], [1, 2]), budget=1)


@pytest.mark.parametrize("bad", [2, 3, -1, -2])
def test_a_parent_that_is_no_earlier_node_is_refused(bad: int) -> None:  # case 19
    tree = DraftTree.from_parents([-1, 0, 0], [1, 2])
    tree.parents[2] = bad
    with pytest.raises(ValueError, match=rf"parents\[2\] is {bad}"):
        compile_ddtree_retrieve(tree)


# ---- faults ----

# next_token, next_sibling, the faults that must be found
FAULTS: dict[str, tuple[list[int], list[int], list[tuple[str, int]]]] = {
    "case 6: points at itself": ([1, -1, -1], [-1, 2, 2], [("cycle", 2)]),
    "case 6: points at the root": ([1, 0, -1], [-1, 2, -1], [("cycle", 1)]),
    "case 6: past the end": (
        [9, -1, -1, -1],
        [-1, 2, 3, -1],
        [("out_of_range", 0), ("unreachable", 1), ("unreachable", 2), ("unreachable", 3)],
    ),
    "case 6: one sibling of two": ([1, 3, -1, -1], [-1, 2, 3, -1], [("visited_twice", 3)]),
    "child and sibling are one": ([1, 2, -1], [-1, 2, -1], [("visited_twice", 2)]),
    "a child is its grandparent": ([1, 2, 1], [-1, -1, -1], [("cycle", 2)]),
    "a cycle apart": (
        [1, -1, 3, 2],
        [-1, -1, -1, -1],
        [("unreachable", 2), ("unreachable", 3), ("cycle", 3)],
    ),
    "a tree apart": ([1, -1, 3, -1], [-1, -1, -1, -1], [("unreachable", 2), ("unreachable", 3)]),
    "a node left out": ([1, -1, -1, -1], [-1, 3, -1, -1], [("unreachable", 2)]),
    "two is not none": ([1, -2, -1], [-1, 2, -7], [("wrong_sentinel", 1), ("wrong_sentinel", 2)]),
    "the root has a sibling": ([1, -1, -1], [2, 2, -1], [("wrong_sentinel", 0)]),
    "siblings descend": ([2, -1, -1], [-1, -1, 1], [("siblings_out_of_order", 1)]),
}


@pytest.mark.parametrize(("next_token", "next_sibling", "expected"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_of_the_pointers(
    next_token: list[int], next_sibling: list[int], expected: list[tuple[str, int]]
) -> None:
    found = check_retrieve(next_token, next_sibling)
    assert [(fault.kind, fault.node) for fault in found] == expected
    as_tensors = check_retrieve(torch.tensor(next_token), torch.tensor(next_sibling))
    assert as_tensors == found
    assert all(str(fault.node) in fault.message for fault in found)


def test_padding() -> None:
    assert check_retrieve([1, -1, -1], [-1, -1, -1]) == []
    reachable = check_retrieve([1, -1, -1], [-1, 2, -1], num_nodes=1)
    assert [(fault.kind, fault.node) for fault in reachable] == [("padding_reachable", 2)]
    pointing = check_retrieve([1, -1, 1], [-1, -1, -1], num_nodes=1)
    assert [(fault.kind, fault.node) for fault in pointing] == [("wrong_sentinel", 2)]
    missing = check_retrieve([1, -1, -1], [-1, -1, -1], num_nodes=2)
    assert [(fault.kind, fault.node) for fault in missing] == [("unreachable", 2)]
    implied = check_retrieve([1, -1, -1], [-1, -1, -1], parents=[-1, 0, 0])
    assert [(fault.kind, fault.node) for fault in implied] == [("unreachable", 2)]


def test_what_disagrees_with_the_pointers() -> None:
    pointers = ([1, 2, -1, -1], [-1, 3, -1, -1])  # 1 and 3 under the root, 2 under 1

    def kinds(**given: list[float]) -> list[tuple[str, int]]:
        return [(fault.kind, fault.node) for fault in check_retrieve(*pointers, **given)]  # type: ignore[arg-type]

    assert kinds(parents=[-1, 0, 1, 0], depths=[1, 2, 1], candidates=[4, 5, 5, 6]) == []
    assert kinds(parents=[-1, 0, 0, 0]) == [("parent_disagrees", 2)]
    assert kinds(parents=[0, 0, 1, 3]) == [("parent_disagrees", 0), ("parent_disagrees", 3)]
    assert kinds(depths=[1, 1, 2]) == [("depth_disagrees", 2), ("depth_disagrees", 3)]
    assert kinds(candidates=[4, 5, 5, 5]) == [("sibling_tokens_equal", 3)]
    assert kinds(candidates=[4, 0, 5, 0]) == [("sibling_tokens_equal", 3)]
    assert kinds(log_weights=[-2.0, -3.0, -1.0]) == [("siblings_out_of_order", 3)]
    assert kinds(log_weights=[-1.0, -3.0, -1.0]) == []


def test_a_parent_that_comes_later_is_an_error() -> None:  # case 19
    found = check_retrieve([2, -1, 1], [-1, -1, -1], parents=[-1, 2, 0])
    assert [(fault.kind, fault.node) for fault in found] == [("parent_disagrees", 1)]
    assert found[0].message == "parents[1] is 2; a parent must be an earlier node"


def test_lengths_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="same length, at least 1, not 2 and 3"):
        check_retrieve([1, -1], [-1, -1, -1])
    with pytest.raises(ValueError, match="at least 1, not 0 and 0"):
        check_retrieve([], [])
    with pytest.raises(ValueError, match="2 nodes and the root do not fit in arrays of length 2"):
        check_retrieve([1, -1], [-1, -1], num_nodes=2)
    with pytest.raises(ValueError, match="depths has 1 entries; this tree needs 2"):
        check_retrieve([1, -1, -1], [-1, 2, -1], depths=[1])


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_whatever_the_arrays_hold_both_checks_agree(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 9))
    pointers = st.lists(st.integers(-2, length), min_size=length, max_size=length)
    next_token, next_sibling = data.draw(pointers), data.draw(pointers)
    tokens = data.draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
    topology = [
        fault
        for fault in check_retrieve(next_token, next_sibling, candidates=tokens)
        if fault.kind != "siblings_out_of_order"
    ]
    # A node that nothing touches is padding to the kernel wherever it stands.
    touched = {node for node in range(length) if (next_token[node], next_sibling[node]) != (-1, -1)}
    touched |= {*next_token, *next_sibling}
    unsafe = [fault for fault in topology if fault.kind != "unreachable" or fault.node in touched]
    arrays = [torch.tensor(values) for values in (next_token, next_sibling, tokens)]
    if unsafe:
        with pytest.raises(ValueError, match=r"^node \d+ "):
            validate_topology(*arrays)
    else:
        validate_topology(*arrays)


@settings(max_examples=300, deadline=None)
@given(trees(12), st.data())
def test_one_broken_pointer_is_found(tree: DraftTree, data: st.DataObject) -> None:
    arrays = compile_ddtree_retrieve(tree)
    pointers = [arrays.retrieve_next_token, arrays.retrieve_next_sibling]
    length = tree.num_nodes + 1
    which, node = data.draw(st.integers(0, 1)), data.draw(st.integers(0, length - 1))
    value = data.draw(st.integers(-2, length))
    if pointers[which][node] == value:
        return
    pointers[which][node] = value
    found = check_retrieve(*pointers, parents=tree.parents)
    assert found


TOPOLOGY_MESSAGES = {
    "case 6: points at itself": "node 2 points at itself or at the root",
    "case 6: points at the root": "node 1 points at itself or at the root",
    "case 6: past the end": "node 0 has a pointer that is neither -1 nor a node",
    "case 6: one sibling of two": "node 3 is pointed at twice",
    "a child is its grandparent": "node 1 is pointed at twice",
    "a cycle apart": "node 2 is cut off",
    "two is not none": "node 1 has a pointer that is neither",
    "the root has a sibling": "node 0 is the root and cannot have a sibling",
}


@pytest.mark.parametrize(("name", "message"), TOPOLOGY_MESSAGES.items())
def test_validation_names_the_node(name: str, message: str) -> None:
    next_token, next_sibling, _ = FAULTS[name]
    with pytest.raises(ValueError, match=message):
        validate_topology(torch.tensor(next_token), torch.tensor(next_sibling))


def test_validation_compares_sibling_tokens() -> None:  # case 7
    pointers = torch.tensor([1, -1, -1]), torch.tensor([-1, 2, -1])
    validate_topology(*pointers, torch.tensor([1, 0, 1]))
    with pytest.raises(ValueError, match="node 2 has the token of an earlier sibling"):
        validate_topology(*pointers, torch.tensor([0, 1, 1]))


def test_validation_takes_1024_siblings_and_a_chain_of_1024() -> None:
    length = 1025
    none, following = torch.full((length,), -1), torch.arange(1, length + 1)
    following[-1] = -1
    fan, fan_siblings = none.clone(), following.clone()
    fan[0], fan_siblings[0] = 1, -1
    tokens = torch.arange(length)
    validate_topology(fan, fan_siblings, tokens)
    validate_topology(following, none, torch.zeros(length, dtype=torch.int64))
    tokens[1000] = tokens[17]
    with pytest.raises(ValueError, match="node 1000 has the token"):
        validate_topology(fan, fan_siblings, tokens)


def test_validation_checks_what_it_is_given() -> None:
    pointers = torch.tensor([1, -1]), torch.tensor([-1, -1])
    with pytest.raises(ValueError, match=r"must be int64 \[2\], not torch.int32 \[2\]"):
        validate_topology(pointers[0].int(), pointers[1])
    with pytest.raises(ValueError, match=r"must be int64 \[2\], not torch.int64 \[3\]"):
        validate_topology(*pointers, torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="empty"):
        validate_topology(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
