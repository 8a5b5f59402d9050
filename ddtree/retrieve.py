"""The retrieve arrays of a draft tree, in the layout of EAGLE's and SGLang's samplers, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ddtree import _kernels
from ddtree.retrieve_check import RetrieveFault, check_retrieve
from ddtree.tree import DraftTree

__all__ = [
    "RetrieveArrays",
    "RetrieveFault",
    "check_retrieve",
    "compile_ddtree_retrieve",
    "validate_topology",
]

_TOPOLOGY_FAULTS = {
    1: "has a pointer that is neither -1 nor a node",
    2: "points at itself or at the root: a cycle",
    3: "is the root and cannot have a sibling",
    4: "is pointed at twice",
    5: "is cut off: no path from the root leads to it, and yet it points or is pointed at",
    6: "has the token of an earlier sibling",
}


@dataclass(frozen=True, slots=True)
class RetrieveArrays:
    """Node i's entry stands at index i, the root at 0; -1 is "none"; entries past the tree are padding."""

    retrieve_index: torch.Tensor  # int64 [n], batch_offset + i
    retrieve_next_token: torch.Tensor  # int64 [n], the first child
    retrieve_next_sibling: torch.Tensor  # int64 [n]


def compile_ddtree_retrieve(
    tree: DraftTree, budget: int | None = None, batch_offset: int = 0
) -> RetrieveArrays:
    """Encode `tree` in arrays of length budget + 1, or N + 1 without a budget.

    Siblings stand in descending log-weight, which is ascending node number. Raises ValueError for a budget
    below the tree's number of nodes.
    """
    nodes = tree.num_nodes + 1
    length = nodes if budget is None else budget + 1
    if length < nodes:
        raise ValueError(f"budget {budget} is too small for a tree of {tree.num_nodes} nodes")
    arrays = np.empty((3, length), dtype=np.int64)
    bad = _kernels.encode_tree(tree.parents.data_ptr(), nodes, length, batch_offset, arrays)
    if bad >= 0:
        raise ValueError(f"parents[{bad}] is {int(tree.parents[bad])}; a parent must be an earlier node")
    return RetrieveArrays(*map(torch.from_numpy, arrays))


def validate_topology(
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    candidates: torch.Tensor | None = None,
) -> None:
    """Whether one batch row of arrays is safe to walk: a tree below node 0, all else padding.

    int64 [n] each; with `candidates` (a token per node) siblings must also have different tokens. Never
    hangs and never reads past the end. Raises ValueError naming the first node that is at fault.
    """
    nodes = retrieve_next_token.numel()
    tensors = [retrieve_next_token, retrieve_next_sibling, *([] if candidates is None else [candidates])]
    for tensor in tensors:
        if tensor.dtype != torch.int64 or tensor.shape != (nodes,):
            shape = f"{tensor.dtype} {list(tensor.shape)}"
            raise ValueError(f"the retrieve arrays of one tree must be int64 [{nodes}], not {shape}")
    if nodes == 0:
        raise ValueError("the retrieve arrays are empty; node 0 is the root")
    on_host = [tensor.cpu().contiguous() for tensor in tensors]
    tokens = on_host[2].data_ptr() if candidates is not None else 0
    fault = _kernels.check_topology(on_host[0].data_ptr(), on_host[1].data_ptr(), tokens, nodes)
    if fault:
        node, kind = divmod(fault, 8)
        pointers = (
            f"next_token {int(on_host[0][node])}, next_sibling {int(on_host[1][node])}, of {nodes} nodes"
        )
        raise ValueError(f"node {node} {_TOPOLOGY_FAULTS[kind]} ({pointers})")
