"""The draft tree: the most probable paths through candidate rows, best first (DDTree, arXiv 2604.12989)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ddtree import _kernels, launch

_FIELDS = 6  # rows of a tree's buffer: token_ids, depths, parents, ranks, rows, log_weights
_LARGEST_BUDGET = 2**20
_LARGEST_ON_CUDA = 1024  # above it the host builds

_DOUBLE = torch.float64
_FLOATS = (torch.float32, _DOUBLE)
_INTEGERS = (torch.int64,)

_ROW_FAULTS = {
    1: "is not a number",
    2: "is +inf",
    3: "is a log-probability above 0",
    4: "is larger than the one before it: rows must descend",
    5: "belongs to a negative token id",
    6: "has a token id that stands earlier in its row",
    7: "has a child row outside the rows",
}


class _Field:
    """A view of one of the fields in a tree's buffer, from entry `first` on, made when it is first read."""

    def __init__(self, index: int, first: int, dtype: type[np.generic] = np.int64) -> None:
        self.index, self.first, self.dtype = index, first, dtype

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tree: DraftTree, owner: type) -> torch.Tensor:
        words = tree.buffer[self.index, self.first : tree.num_nodes + 1]
        if self.dtype is not np.int64:
            words = words.view(self.dtype)
        view = tree.__dict__[self.name] = torch.from_numpy(words)
        return view


@dataclass(frozen=True, eq=False)
class DraftTree:
    """The host's view of a draft tree of N nodes below a root, which is node 0.

    Nodes are numbered from 1 in the order in which they were added, so the tree for a smaller budget is the
    first nodes of this one. Its fields share one buffer.
    """

    buffer: NDArray[np.int64]  # [6, budget + 1]
    budget: int
    num_nodes: int  # N <= budget

    token_ids = _Field(0, first=1)
    """int64 [N]."""
    depths = _Field(1, first=1)
    """int64 [N], 1 for a child of the root."""
    parents = _Field(2, first=0)
    """int64 [N + 1]; parents[0] is -1, and parents[i] < i."""
    ranks = _Field(3, first=1)
    """int64 [N], index in the candidate row the node was taken from."""
    rows = _Field(4, first=1)
    """int64 [N], the candidate row the node was taken from."""
    log_weights = _Field(5, first=1, dtype=np.float64)
    """float64 [N], natural log: the sum of the log-probabilities along the path."""

    def visibility(self) -> torch.Tensor:
        """bool [N + 1, N + 1]: row i sees its ancestors and itself."""
        length = self.num_nodes + 1
        visible = torch.empty(length, length, dtype=torch.bool)
        _kernels.write_visibility(self.parents.data_ptr(), length, length, visible.data_ptr())
        return visible

    def first(self, budget: int) -> DraftTree:
        """The tree of a smaller budget: the first nodes of this one."""
        nodes = min(budget, self.num_nodes)
        return DraftTree(np.ascontiguousarray(self.buffer[:, : nodes + 1]), budget, nodes)

    @staticmethod
    def from_parents(parents: Sequence[int], token_ids: Sequence[int]) -> DraftTree:
        """A tree of any shape, for tests and fixed topologies: no candidate rows, all log-weights 0.

        parents [N + 1] with parents[0] == -1 and 0 <= parents[i] < i, token_ids [N]; a node's rank is its
        place among its siblings. Raises ValueError naming the node.
        """
        nodes = len(token_ids)
        if len(parents) != nodes + 1:
            raise ValueError(
                f"{nodes} tokens need {nodes + 1} parents (the root's first), not {len(parents)}"
            )
        depths, ranks, children = [0], [-1], [0] * (nodes + 1)
        if parents[0] != -1:
            raise ValueError(f"parents[0] is {parents[0]}; the root's parent is -1")
        for node in range(1, nodes + 1):
            parent = parents[node]
            if not 0 <= parent < node:
                raise ValueError(f"parents[{node}] is {parent}; a parent must be an earlier node")
            depths.append(depths[parent] + 1)
            ranks.append(children[parent])
            children[parent] += 1
        zeros = [0] * (nodes + 1)
        fields = [[0, *token_ids], depths, list(parents), ranks, [-1] * (nodes + 1), zeros]
        return DraftTree(np.array(fields, dtype=np.int64), nodes, nodes)


def build_ddtree_tree_from_topk(
    top_log_probs: torch.Tensor, top_token_ids: torch.Tensor, budget: int
) -> DraftTree:
    """The `budget` most probable nodes when each depth has one candidate row, whatever came before.

    top_log_probs float [L, K], natural log, each row descending, normalised over the whole vocabulary;
    top_token_ids int64 [L, K]. See `build_ddtree_tree`, of which this is the case "row = depth - 1".
    """
    return build_ddtree_tree(top_log_probs, top_token_ids, None, budget)


def build_ddtree_tree(
    top_log_probs: torch.Tensor,
    top_token_ids: torch.Tensor,
    child_rows: torch.Tensor | None,
    budget: int,
) -> DraftTree:
    """The `budget` most probable nodes below the root, over candidate rows.

    top_log_probs float [R, K] (float64 as it is, others as float32), natural log, each row descending;
    top_token_ids int64 [R, K]; child_rows int64 [R, K]: the row of each candidate's own children, -1: none
    (None: the next row). The root's children stand in row 0.

    The node with the highest log-weight (float64: the parent's plus its own log-probability) comes next, and
    among equal ones that with the lexicographically smaller path of ranks. Entries of -inf never enter: they
    are padding, and their token ids do not matter. R, K or budget 0: the root alone.

    Raises ValueError, with row and column where there is one: shapes that differ, a negative budget, NaN,
    +inf, a log-probability above 1e-6 (up to that it counts as 0), a row that is not descending, a token
    twice in a row, a negative token id, a child row that is not a row.
    """
    budget = operator.index(budget)
    if not 0 <= budget <= _LARGEST_BUDGET:
        raise ValueError(f"budget is {budget}; it must be 0 to {_LARGEST_BUDGET}")
    shape = top_log_probs.shape
    if len(shape) != 2 or shape != top_token_ids.shape:
        shapes = f"{list(shape)} and {list(top_token_ids.shape)}"
        raise ValueError(f"top_log_probs and top_token_ids must be [rows, candidates] both, not {shapes}")
    if child_rows is not None and child_rows.shape != shape:
        raise ValueError(f"child_rows is {list(child_rows.shape)}; the rows are {list(shape)}")
    rows, ranks = shape
    if rows * ranks >= 2**31:
        raise ValueError(f"{rows} x {ranks} candidates are more than 2^31 - 1")
    on_device = (
        not top_log_probs.is_cpu and budget <= _LARGEST_ON_CUDA and launch.has_kernels_for(top_log_probs)
    )
    log_probs = _for_kernel(top_log_probs, _FLOATS, "top_log_probs", on_device)
    token_ids = _for_kernel(top_token_ids, _INTEGERS, "top_token_ids", on_device)
    children = None if child_rows is None else _for_kernel(child_rows, _INTEGERS, "child_rows", on_device)
    if not log_probs.is_cpu:
        fields, _, _, status = launch.build_trees(
            log_probs[None], token_ids[None], None if children is None else children[None], budget
        )
        num_nodes, fault = status[0].tolist()
        if fault:
            raise rows_fault(fault, log_probs)
        return DraftTree(fields[0].cpu().numpy(), budget, num_nodes)
    buffer = np.empty((_FIELDS, budget + 1), dtype=np.int64)
    num_nodes = _kernels.build_tree(
        log_probs.data_ptr(),
        log_probs.dtype is _DOUBLE,
        token_ids.data_ptr(),
        0 if children is None else children.data_ptr(),
        rows,
        ranks,
        budget,
        buffer,
    )
    if num_nodes < 0:
        raise rows_fault(-num_nodes, log_probs)
    return DraftTree(buffer, budget, num_nodes)


def rows_fault(packed: int, log_probs: torch.Tensor) -> ValueError:
    """The exception for 8 * entry + fault of candidate rows [R, K]."""
    entry, fault = divmod(packed, 8)
    row, column = divmod(entry, log_probs.shape[1])
    value = log_probs[row, column].item()
    return ValueError(f"candidate ({value:g}) at row {row}, column {column} {_ROW_FAULTS[fault]}")


def _for_kernel(
    values: torch.Tensor, dtypes: tuple[torch.dtype, ...], name: str, on_device: bool = False
) -> torch.Tensor:
    """`values` contiguous, in one of `dtypes`: the first, unless it has another of them; on the host, unless
    it may stay on its device."""
    dtype = values.dtype
    if dtype not in dtypes:
        wanted = dtypes[0]
        if dtype.is_complex or dtype.is_floating_point != wanted.is_floating_point or dtype is torch.bool:
            raise ValueError(f"{name} must be {wanted}, not {dtype}")
        values = values.to(wanted)
    if values.is_cpu and values.is_contiguous():
        return values
    return values.contiguous() if on_device else values.cpu().contiguous()
