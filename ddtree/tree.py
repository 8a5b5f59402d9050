"""The draft tree: the most probable paths through candidate rows, best first (DDTree, arXiv 2604.12989)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ddtree import _kernels

_HEADER = 4  # words before the fields in a tree's buffer: num_nodes, fault, row, column
_FIELDS = 6  # token_ids, depths, parents, ranks, rows, log_weights
_LARGEST_BUDGET = 2**20

_ROW_FAULTS = {
    1: "is not a number",
    2: "is +inf",
    3: "is a log-probability above 0",
    4: "is larger than the one before it: rows must descend",
    5: "belongs to a negative token id",
    6: "has a token id that stands earlier in its row",
    7: "has a child row outside the rows",
}


@dataclass(frozen=True, eq=False)
class DraftTree:
    """The host's view of a draft tree of N nodes below a root, which is node 0.

    Nodes are numbered from 1 in the order in which they were added, so the tree for a smaller budget is the
    first nodes of this one. All fields are views of one buffer, made when they are first read.
    """

    buffer: NDArray[np.int64]  # [4 + 6 * (budget + 1)]: header, then a field after the other
    budget: int
    num_nodes: int  # N <= budget

    def _field(self, index: int, start: int) -> NDArray[np.int64]:
        first = _HEADER + index * (self.budget + 1)
        return self.buffer[first + start : first + self.num_nodes + 1]

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """int64 [N]."""
        return torch.from_numpy(self._field(0, 1))

    @cached_property
    def depths(self) -> torch.Tensor:
        """int64 [N], 1 for a child of the root."""
        return torch.from_numpy(self._field(1, 1))

    @cached_property
    def parents(self) -> torch.Tensor:
        """int64 [N + 1]; parents[0] is -1, and parents[i] < i."""
        return torch.from_numpy(self._field(2, 0))

    @cached_property
    def ranks(self) -> torch.Tensor:
        """int64 [N], index in the candidate row the node was taken from."""
        return torch.from_numpy(self._field(3, 1))

    @cached_property
    def rows(self) -> torch.Tensor:
        """int64 [N], the candidate row the node was taken from."""
        return torch.from_numpy(self._field(4, 1))

    @cached_property
    def log_weights(self) -> torch.Tensor:
        """float64 [N], natural log: the sum of the log-probabilities along the path."""
        return torch.from_numpy(self._field(5, 1).view(np.float64))

    def visibility(self) -> torch.Tensor:
        """bool [N + 1, N + 1]: row i sees its ancestors and itself."""
        length = self.num_nodes + 1
        visible = torch.empty(length, length, dtype=torch.bool)
        _kernels.write_visibility(self.parents.data_ptr(), length, length, visible.data_ptr())
        return visible

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
        words = [nodes, 0, -1, -1, *(word for field in fields for word in field)]
        return DraftTree(np.array(words, dtype=np.int64), nodes, nodes)


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
    log_probs, token_ids, children = _checked(top_log_probs, top_token_ids, child_rows)
    rows, ranks = log_probs.shape
    buffer = np.empty(_HEADER + _FIELDS * (budget + 1), dtype=np.int64)
    num_nodes = _kernels.build_tree(
        log_probs.data_ptr(),
        log_probs.dtype == torch.float64,
        token_ids.data_ptr(),
        0 if children is None else children.data_ptr(),
        rows,
        ranks,
        budget,
        buffer,
    )
    if num_nodes < 0:
        _, fault, row, column = (int(word) for word in buffer[:_HEADER])
        value = log_probs[row, column].item()
        raise ValueError(f"candidate ({value:g}) at row {row}, column {column} {_ROW_FAULTS[fault]}")
    return DraftTree(buffer, budget, num_nodes)


def _checked(
    log_probs: torch.Tensor, token_ids: torch.Tensor, child_rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The three on the host, contiguous, in the kernel's dtypes."""
    if log_probs.dim() != 2 or log_probs.shape != token_ids.shape:
        shapes = f"{list(log_probs.shape)} and {list(token_ids.shape)}"
        raise ValueError(f"top_log_probs and top_token_ids must be [rows, candidates] both, not {shapes}")
    if child_rows is not None and child_rows.shape != token_ids.shape:
        raise ValueError(f"child_rows is {list(child_rows.shape)}; the rows are {list(token_ids.shape)}")
    if log_probs.numel() >= 2**31:
        raise ValueError(f"{list(log_probs.shape)} candidates are more than 2^31 - 1")
    if log_probs.dtype not in (torch.float32, torch.float64):
        if not log_probs.is_floating_point():
            raise ValueError(f"top_log_probs must be floating point, not {log_probs.dtype}")
        log_probs = log_probs.float()
    return (
        _on_host(log_probs),
        _on_host(_integers(token_ids, "top_token_ids")),
        None if child_rows is None else _on_host(_integers(child_rows, "child_rows")),
    )


def _integers(values: torch.Tensor, name: str) -> torch.Tensor:
    if values.dtype == torch.int64:
        return values
    if values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(f"{name} must be int64, not {values.dtype}")
    return values.long()


def _on_host(values: torch.Tensor) -> torch.Tensor:
    return values if values.is_cpu and values.is_contiguous() else values.cpu().contiguous()
