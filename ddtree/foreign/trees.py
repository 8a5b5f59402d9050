"""A tree from elsewhere: its pointers, its faults, and what can be drawn of it whatever is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddtree.foreign.errors import ForeignError
from ddtree.retrieve import check_retrieve

MAX_NODES = 1024


class Fault(NamedTuple):
    """What is wrong, and at which node; kinds are those of `check_retrieve` and a few of this package's."""

    kind: str
    node: int
    message: str


class Pointer(NamedTuple):
    """One step of the encoding: `array[at] = node`."""

    node: int
    parent: int
    array: Literal["retrieve_next_token", "retrieve_next_sibling"]
    at: int


@dataclass(frozen=True)
class ForeignTree:
    """N nodes below a root; lists are as long as N + 1, the root's entry first. None: not given."""

    next_token: list[int]
    next_sibling: list[int]
    parents: list[int]  # by the pointers; -1 of the root and of nodes that no path leads to
    depths: list[int]  # by the pointers; 0 of the root and of those
    children: list[list[int]]  # each node once at most, in sibling order: safe to walk
    lost: list[int]  # nodes that no path from the root leads to
    faults: list[Fault]
    encoding: list[Pointer]  # how the pointers come about; empty where something is wrong
    token_ids: list[int] | None = None
    root_token: int | None = None
    retrieve_index: list[int] | None = None
    ranks: list[int] | None = None
    rows: list[int] | None = None
    log_weights: list[float] | None = None
    draft_log_probs: list[float] | None = None
    accept_index: list[int] | None = None  # the path as recorded, root first
    bonus_token_id: int | None = None
    coins: list[float] | None = None
    final_coin: float | None = None
    target_probs: NDArray[np.float32] | None = None  # [N + 1, V]
    node_probs: list[float] | None = None  # [N], each node's probability given its parent
    budget: int | None = None

    @property
    def size(self) -> int:
        """Nodes below the root."""
        return len(self.parents) - 1


class Structure(NamedTuple):
    """What a tree's pointers say."""

    next_token: list[int]
    next_sibling: list[int]
    parents: list[int]
    depths: list[int]
    children: list[list[int]]
    lost: list[int]
    faults: list[Fault]
    encoding: list[Pointer]

    def tree(self, faults: Sequence[Fault] = (), **known: object) -> ForeignTree:
        """With what else is known of it; more faults may come from there."""
        found = sorted([*self.faults, *faults], key=lambda fault: fault.node)
        encoding = [] if found else self.encoding
        return ForeignTree(**{**self._asdict(), "faults": found, "encoding": encoding, **known})  # type: ignore[arg-type]


def structure(
    next_token: Sequence[int],
    next_sibling: Sequence[int],
    *,
    num_nodes: int | None = None,
    parents: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    log_weights: Sequence[float] | None = None,
    candidates: Sequence[int] | None = None,
) -> Structure:
    """The structure of pointers [n], checked; the other arguments as in `check_retrieve`. Never hangs,
    whatever they hold. Raises ForeignError for lengths that do not fit together and for too many nodes."""
    if len(next_token) > MAX_NODES + 1:
        raise ForeignError(f"the tree has {len(next_token) - 1} nodes; at most {MAX_NODES} are drawn here")
    try:
        found = check_retrieve(
            list(next_token), list(next_sibling), num_nodes, parents, depths, log_weights, candidates
        )
    except ValueError as error:
        raise ForeignError(str(error)) from None
    if num_nodes is None:
        num_nodes = len(parents) - 1 if parents is not None else _last_touched(next_token, next_sibling)
    children, reached = _walked(next_token, next_sibling)
    size = max(num_nodes, *reached) + 1
    parent_of, depth_of = [-1] * size, [0] * size
    for node in reached:
        for child in children[node]:
            parent_of[child], depth_of[child] = node, depth_of[node] + 1
    lost = sorted(set(range(size)) - set(reached))
    return Structure(
        list(next_token[:size]),
        list(next_sibling[:size]),
        parent_of,
        depth_of,
        children[:size],
        lost,
        [Fault(fault.kind, fault.node, fault.message) for fault in found],
        [] if found else encoding_steps(parent_of),
    )


def from_parents(
    parents: Sequence[int],
    *,
    depths: Sequence[int] | None = None,
    log_weights: Sequence[float] | None = None,
    candidates: Sequence[int] | None = None,
) -> Structure:
    """The structure of parents [N + 1], the root's first, encoded as a run encodes it: nodes in ascending
    order become first child or next sibling. Entries that are no node are faults."""
    size = len(parents)
    if size == 0:
        raise ForeignError("parents is empty; the root's entry, -1, comes first")
    usable = [-1, *(p if 0 <= p < size and p != i else -1 for i, p in enumerate(parents[1:], 1))]
    next_token, next_sibling = [-1] * size, [-1] * size
    for step in encoding_steps(usable):
        (next_token if step.array == "retrieve_next_token" else next_sibling)[step.at] = step.node
    faults = [
        Fault("parent_out_of_range", node, f"parents[{node}] is {p}; the tree has nodes 0 to {size - 1}")
        for node, p in enumerate(parents)
        if node and not 0 <= p < size
    ]
    if parents[0] != -1:
        faults.append(Fault("wrong_sentinel", 0, f"parents[0] is {parents[0]}; the root's parent is -1"))
    found = structure(
        next_token,
        next_sibling,
        num_nodes=size - 1,
        parents=[-1, *parents[1:]],
        depths=depths,
        log_weights=log_weights,
        candidates=candidates,
    )
    known = {fault.node for fault in faults}
    kept = [f for f in found.faults if not (f.kind == "parent_disagrees" and f.node in known)]
    return found._replace(faults=[*faults, *kept], encoding=[] if faults else found.encoding)


def aligned(parents: list[int], tokens: list[int] | None) -> tuple[list[int], list[int] | None, int | None]:
    """(parents with the root's, tokens without it, the root's token): either list may begin with the root."""
    if len(parents) > MAX_NODES + 1:
        raise ForeignError(f"the tree has {len(parents)} nodes; at most {MAX_NODES} are drawn here")
    if tokens is None:
        return parents, None, None
    if len(tokens) == len(parents) - 1:
        return parents, tokens, None
    if len(tokens) == len(parents) and parents and parents[0] == -1:
        return parents, tokens[1:], tokens[0]
    if len(tokens) == len(parents):
        return [-1, *parents], tokens, None
    raise ForeignError(
        f"{len(parents)} parents and {len(tokens)} tokens do not fit: give the root's parent, -1, first, and "
        "a token for each node below it"
    )


def parented(
    parents: list[int],
    tokens: list[int] | None,
    root: int | None,
    depths: list[int] | None,
    weights: list[float] | None,
) -> Structure:
    nodes = len(parents) - 1
    if depths is not None and len(depths) == nodes + 1:
        depths = depths[1:]
    return from_parents(
        parents,
        depths=depths,
        log_weights=weights,
        candidates=None if tokens is None else [-1 if root is None else root, *tokens],
    )


def encoding_steps(parents: Sequence[int]) -> list[Pointer]:
    """Which pointer each node sets when the nodes come in ascending order: its parent's first-child pointer,
    or the next-sibling pointer of the child before it. Nodes of parent -1 set none."""
    last: dict[int, int] = {}
    steps = []
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        before = last.get(parent)
        if before is None:
            steps.append(Pointer(node, parent, "retrieve_next_token", parent))
        else:
            steps.append(Pointer(node, parent, "retrieve_next_sibling", before))
        last[parent] = node
    return steps


def path_faults(tree: Structure, path: Sequence[int]) -> list[Fault]:
    """Where a recorded path, root first, is no path of the tree."""
    faults = []
    for before, node in pairwise(path):
        if not 0 < node < len(tree.parents):
            message = f"the recorded path has {node}; the tree has nodes 0 to {len(tree.parents) - 1}"
            faults.append(Fault("path_broken", max(before, 0), message))
            break
        if tree.parents[node] != before:
            message = f"the recorded path goes from {before} to {node}, a child of {tree.parents[node]}"
            faults.append(Fault("path_broken", node, message))
    if path and path[0] != 0:
        faults.append(Fault("path_broken", 0, f"the recorded path begins at {path[0]}, not at the root"))
    return faults


def _walked(next_token: Sequence[int], next_sibling: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """(children of each node, the nodes reached): every node is entered once, so cycles end."""
    size = min(len(next_token), len(next_sibling))
    children: list[list[int]] = [[] for _ in range(size)]
    seen, reached = {0}, [0]
    for node in reached:
        child = next_token[node]
        while 0 < child < size and child not in seen:
            seen.add(child)
            reached.append(child)
            children[node].append(child)
            child = next_sibling[child]
    return children, reached


def _last_touched(next_token: Sequence[int], next_sibling: Sequence[int]) -> int:
    """The last node that points or is pointed at: what comes after it is padding."""
    touched = [0]
    for node, pair in enumerate(zip(next_token, next_sibling, strict=True)):
        if pair != (-1, -1):
            touched.append(node)
        touched += [target for target in pair if 0 <= target < len(next_token)]
    return max(touched)
