"""What a sampler's status says, in words."""

from __future__ import annotations

import torch

_ROW_FAULTS = {
    1: "holds NaN",
    2: "holds +inf",
    3: "holds a negative probability",
    4: "has no mass: every token is impossible",
}
_BAD_TOKEN = 5
_BAD_SLOT = 6
TOPOLOGY = 7


class SamplingFault(ValueError):
    """The walk met something that it cannot sample from. `node` is where (0: the root); `batch_row` says in
    which tree, None where there is only one."""

    def __init__(self, message: str, node: int, batch_row: int | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.batch_row = batch_row


def unpack_status(status: int) -> tuple[int, int]:
    """(node, kind) of a status that is not 0."""
    return divmod(status, 8)


def fault_of_status(status: int, row: torch.Tensor | None, batch_row: int | None = None) -> SamplingFault:
    """The exception for a status that is not 0; `row` is its node's row [V], to say which token it is."""
    node, kind = unpack_status(status)
    where = f"node {node}" if batch_row is None else f"batch row {batch_row}, node {node}"
    if kind in _ROW_FAULTS:
        message = f"the target's row of {where} {_ROW_FAULTS[kind]}{_at_token(row, kind)}"
    elif kind == _BAD_TOKEN:
        message = f"candidates at {where} is no token of the vocabulary"
    elif kind == _BAD_SLOT:
        message = f"retrieve_index at {where} lies outside predicts"
    else:
        message = f"the retrieve arrays are no tree at {where}; check_retrieve lists what is wrong"
    return SamplingFault(message, node, batch_row)


def _at_token(row: torch.Tensor | None, kind: int) -> str:
    if row is None or kind not in (1, 2, 3):
        return ""
    values = row.float()
    wrong = values.isnan() if kind == 1 else values.isposinf() if kind == 2 else values < 0
    return f" (first at token {int(wrong.nonzero()[0])})"
