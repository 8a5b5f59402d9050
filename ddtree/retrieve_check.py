"""Every fault of retrieve arrays from anywhere: ours, another engine's, a paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

FaultKind = Literal[
    "unreachable",
    "visited_twice",
    "cycle",
    "out_of_range",
    "padding_reachable",
    "siblings_out_of_order",
    "sibling_tokens_equal",
    "parent_disagrees",
    "depth_disagrees",
    "wrong_sentinel",
]

Numbers: TypeAlias = "Sequence[int] | torch.Tensor"


@dataclass(frozen=True, slots=True)
class RetrieveFault:
    """What is wrong with retrieve arrays, and at which node."""

    kind: FaultKind
    node: int
    message: str


def check_retrieve(
    retrieve_next_token: Numbers,
    retrieve_next_sibling: Numbers,
    num_nodes: int | None = None,
    parents: Numbers | None = None,
    depths: Numbers | None = None,
    log_weights: Sequence[float] | torch.Tensor | None = None,
    candidates: Numbers | None = None,
) -> list[RetrieveFault]:
    """Every fault of retrieve arrays, in the order of the nodes; an empty list: they describe a tree.

    The two arrays have n entries, the root's first. num_nodes N: how many nodes stand below the root, the
    rest being padding; without it N follows from `parents`, else what nothing touches at the end is padding.
    parents and candidates (a token per node) have N + 1 entries, the root's first; depths and log_weights N,
    as in `DraftTree`; entries past that are ignored. Never hangs, whatever the arrays hold. Raises
    ValueError only for lengths that do not fit together.
    """
    next_token = [int(pointer) for pointer in _listed(retrieve_next_token)]
    next_sibling = [int(pointer) for pointer in _listed(retrieve_next_sibling)]
    if not next_token or len(next_token) != len(next_sibling):
        lengths = f"{len(next_token)} and {len(next_sibling)}"
        raise ValueError(f"the two pointer arrays must have the same length, at least 1, not {lengths}")
    if num_nodes is None and parents is not None:
        num_nodes = len(parents) - 1
    if num_nodes is None:
        num_nodes = _last_touched(next_token, next_sibling)
    if not 0 <= num_nodes < len(next_token):
        raise ValueError(f"{num_nodes} nodes and the root do not fit in arrays of length {len(next_token)}")

    faults = list(_pointer_faults(next_token, next_sibling, num_nodes))
    walk = _Walk(next_token, next_sibling, num_nodes)
    faults += walk.faults
    faults += _order_faults(walk, _expected(log_weights, "log_weights", num_nodes))
    faults += _token_faults(walk, _expected(candidates, "candidates", num_nodes + 1))
    faults += _parent_faults(walk, _expected(parents, "parents", num_nodes + 1))
    faults += _depth_faults(walk, _expected(depths, "depths", num_nodes))
    return sorted(faults, key=lambda fault: fault.node)


def _listed(values: Sequence[float] | torch.Tensor) -> list[float]:
    return list(values) if isinstance(values, Sequence) else values.tolist()


def _expected(values: Sequence[float] | torch.Tensor | None, name: str, length: int) -> list[float] | None:
    if values is None:
        return None
    listed = _listed(values)
    if len(listed) < length:
        raise ValueError(f"{name} has {len(listed)} entries; this tree needs {length}")
    return listed[:length]


def _last_touched(next_token: list[int], next_sibling: list[int]) -> int:
    """The last node that points or is pointed at."""
    length = len(next_token)
    touched = [0]
    for node, (child, sibling) in enumerate(zip(next_token, next_sibling, strict=True)):
        if (child, sibling) != (-1, -1):
            touched.append(node)
        touched += [target for target in (child, sibling) if 0 <= target < length]
    return max(touched)


def _pointers(next_token: list[int], next_sibling: list[int]) -> Iterator[tuple[str, int, int]]:
    for node, (child, sibling) in enumerate(zip(next_token, next_sibling, strict=True)):
        yield "next_token", node, child
        yield "next_sibling", node, sibling


def _pointer_faults(
    next_token: list[int], next_sibling: list[int], num_nodes: int
) -> Iterator[RetrieveFault]:
    """Pointers that are wrong in themselves. The walk follows none of them."""
    for name, node, target in _pointers(next_token, next_sibling):
        here = f"{name}[{node}] is {target}"
        if target < -1:
            yield RetrieveFault("wrong_sentinel", node, f"{here}; 'none' is -1")
        elif target >= len(next_token):
            yield RetrieveFault("out_of_range", node, f"{here}; the last node is {len(next_token) - 1}")
        elif target != -1 and node > num_nodes:
            yield RetrieveFault("wrong_sentinel", node, f"{here}; past node {num_nodes} all is padding: -1")
        elif target != -1 and node == 0 and name == "next_sibling":
            yield RetrieveFault("wrong_sentinel", node, f"{here}; the root has no sibling: -1")
        elif target == 0:
            yield RetrieveFault("cycle", node, f"{here}, the root; 'none' is -1")


class _Walk:
    """Follows every pointer that can be followed, from the root first, then from what that did not reach."""

    def __init__(self, next_token: list[int], next_sibling: list[int], num_nodes: int) -> None:
        self.faults: list[RetrieveFault] = []
        self.parent_of: dict[int, int] = {0: -1}  # of the nodes reached from the root
        self.depth_of: dict[int, int] = {0: 0}
        self.children_of: dict[int, list[int]] = {}  # in sibling order
        self._edges: dict[int, list[tuple[str, int]]] = {}
        self._state: dict[int, Literal["open", "done"]] = {}
        self._num_nodes = num_nodes
        pointed_at = set()
        for name, node, target in _pointers(next_token, next_sibling):
            followed = node <= num_nodes and 0 < target < len(next_token)
            if followed and not (node == 0 and name == "next_sibling"):
                self._edges.setdefault(node, []).append((name, target))
                pointed_at.add(target)

        self._from(0, reached=True)
        lost = [node for node in range(1, num_nodes + 1) if node not in self._state]
        for node in lost:
            message = f"no path from the root leads to node {node}"
            self.faults.append(RetrieveFault("unreachable", node, message))
        for node in sorted(lost, key=lambda node: node in pointed_at):  # cycles last: they have no beginning
            if node not in self._state:
                self._from(node, reached=False)

    def _from(self, start: int, reached: bool) -> None:
        """Depth first, children before siblings; a stack entry is a pointer to follow, or a node to close."""
        stack: list[tuple[str, int, int]] = [("start", -1, start)]
        while stack:
            name, source, node = stack.pop()
            if name == "close":
                self._state[node] = "done"
            elif node in self._state:
                self._met_again(name, source, node)
            else:
                self._state[node] = "open"
                if reached and name != "start":
                    self._place(name, source, node)
                stack.append(("close", -1, node))
                stack += [(edge, node, target) for edge, target in reversed(self._edges.get(node, []))]

    def _met_again(self, name: str, source: int, node: int) -> None:
        if self._state[node] == "open":
            message = f"{name}[{source}] is {node}, which leads back to node {source}"
            self.faults.append(RetrieveFault("cycle", source, message))
        else:
            message = f"{name}[{source}] is {node}, and another pointer leads there too"
            self.faults.append(RetrieveFault("visited_twice", node, message))

    def _place(self, name: str, source: int, node: int) -> None:
        parent = source if name == "next_token" else self.parent_of[source]
        self.parent_of[node] = parent
        self.depth_of[node] = self.depth_of[parent] + 1
        self.children_of.setdefault(parent, []).append(node)
        if node > self._num_nodes:
            message = f"{name}[{source}] is {node}, which is padding: the last node is {self._num_nodes}"
            self.faults.append(RetrieveFault("padding_reachable", node, message))


def _order_faults(walk: _Walk, log_weights: list[float] | None) -> Iterator[RetrieveFault]:
    """Siblings stand in descending log-weight, which is ascending node number."""
    for siblings in walk.children_of.values():
        for before, node in pairwise(siblings):
            if node < before:
                message = f"node {node} stands after its sibling {before}: they must ascend"
                yield RetrieveFault("siblings_out_of_order", node, message)
            elif log_weights is not None and node <= len(log_weights):
                first, second = log_weights[before - 1], log_weights[node - 1]
                if not first >= second:
                    message = f"node {node} (log-weight {second:g}) stands after {before} ({first:g})"
                    yield RetrieveFault("siblings_out_of_order", node, message)


def _token_faults(walk: _Walk, tokens: list[float] | None) -> Iterator[RetrieveFault]:
    for siblings in walk.children_of.values():
        first_with: dict[float, int] = {}
        for node in siblings:
            if tokens is None or node >= len(tokens):
                continue
            first = first_with.setdefault(tokens[node], node)
            if first != node:
                message = f"node {node} has token {tokens[node]}, as its sibling {first} has"
                yield RetrieveFault("sibling_tokens_equal", node, message)


def _parent_faults(walk: _Walk, parents: list[float] | None) -> Iterator[RetrieveFault]:
    for node, given in enumerate(parents or []):
        parent = walk.parent_of.get(node, given)
        if given != parent:
            message = f"parents[{node}] is {given}, but the pointers make it a child of {parent}"
            yield RetrieveFault("parent_disagrees", node, message)
        elif given >= node:
            message = f"parents[{node}] is {given}; a parent must be an earlier node"
            yield RetrieveFault("parent_disagrees", node, message)


def _depth_faults(walk: _Walk, depths: list[float] | None) -> Iterator[RetrieveFault]:
    for node, given in enumerate(depths or [], start=1):
        depth = walk.depth_of.get(node, given)
        if given != depth:
            message = f"depth of node {node} is {given}, but its path has {depth} nodes below the root"
            yield RetrieveFault("depth_disagrees", node, message)
