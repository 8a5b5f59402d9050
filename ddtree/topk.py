"""The likeliest tokens of each row of logits, and their log-probabilities over the whole vocabulary."""

from __future__ import annotations

import torch

from ddtree import _kernels

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_COLDEST = 1e-5


class RowFault(ValueError):
    """A row of logits that has no softmax: NaN, +inf, or nothing above -inf."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} of the logits has NaN, +inf or no mass")
        self.row = row


def topk_log_softmax(
    logits: torch.Tensor, k: int, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row the k largest entries of log_softmax(logits / temperature), natural log, in one pass.

    logits [R, V], float32, bfloat16 or float16. Returns (top_log_probs float32 [R, k], top_token_ids int64
    [R, k]), each row descending, equal logits by lower id, also at the cut; k is cut to V. Raises RowFault
    (a ValueError) for the first row with NaN, +inf or no mass, ValueError for k < 1 or a temperature below
    1e-5.
    """
    if logits.dim() != 2 or logits.dtype not in _DTYPES:
        given = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(f"logits must be [rows, vocabulary] in float32, bfloat16 or float16, not {given}")
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    if not _COLDEST <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be finite and at least {_COLDEST}")
    rows, size = logits.shape
    k = min(k, size)
    on_host = logits.detach().cpu().contiguous()
    top_log_probs = torch.empty(rows, k, dtype=torch.float32)
    top_token_ids = torch.empty(rows, k, dtype=torch.int64)
    fault = _kernels.topk_log_softmax(
        on_host.data_ptr(),
        _DTYPES[logits.dtype],
        rows,
        size,
        k,
        temperature,
        top_log_probs.data_ptr(),
        top_token_ids.data_ptr(),
    )
    if fault >= 0:
        raise RowFault(fault)
    return top_log_probs.to(logits.device), top_token_ids.to(logits.device)
