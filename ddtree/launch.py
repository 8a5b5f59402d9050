"""The padded forms: trees and samplers in batches, on the device of their tensors.

Everything has the size that the arguments' shapes give it, so that nothing needs to be known on the host:
nothing here synchronises, and nothing raises for what the numbers hold (the status says it). On CUDA the
kernels run on the current stream and may be captured in a graph. `ddtree.padded` reads the results,
`ddtree.ops` makes torch operators of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ddtree import _kernels

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The kernels' numbers for the dtypes that logits may have."""

TREE_FIELDS = 6
_NO_CUDA = "this build has no CUDA kernels: install it again with DDTREE_CUDA=ON where nvcc is"


def build_trees(
    top_log_probs: torch.Tensor, top_token_ids: torch.Tensor, child_rows: torch.Tensor | None, budget: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Build, encode and mask a batch of trees, each as `build_ddtree_tree` does, padded to the budget.

    top_log_probs float32 or float64 [B, R, K], top_token_ids and child_rows int64 [B, R, K]; n = budget + 1.
    Returns fields int64 [B, 6, n] (token_ids, depths, parents, ranks, rows, the bits of log_weights; the root
    at 0), retrieve int64 [B, 3, n] (retrieve_index = tree * n + node, next_token, next_sibling), visible bool
    [B, n, n] (a padding row sees the root and itself), status int64 [B, 2]: num_nodes, and 0 or 8 * entry +
    fault, in which case the tree is the root alone. Raises ValueError for shapes, dtypes and devices.
    """
    if top_log_probs.dim() != 3 or top_log_probs.dtype not in (torch.float32, torch.float64):
        given = f"{top_log_probs.dtype} {list(top_log_probs.shape)}"
        raise ValueError(f"top_log_probs must be float32 or float64 [trees, rows, candidates], not {given}")
    batch, rows, ranks = top_log_probs.shape
    tables = [("top_token_ids", top_token_ids)]
    tables += [] if child_rows is None else [("child_rows", child_rows)]
    for name, table in tables:
        _check(name, table, torch.int64, top_log_probs.shape, top_log_probs.device)
    largest = _largest_budget(top_log_probs)
    if not 0 <= budget <= largest:
        raise ValueError(f"budget is {budget}; it must be 0 to {largest} on {top_log_probs.device}")
    inputs = [tensor.contiguous() for tensor in (top_log_probs, *(table for _, table in tables))]
    empty = top_token_ids.new_empty
    outputs = (
        empty(batch, TREE_FIELDS, budget + 1),
        empty(batch, 3, budget + 1),
        empty(batch, budget + 1, budget + 1, dtype=torch.bool),
        empty(batch, 2),
    )
    pointers = [*map(torch.Tensor.data_ptr, inputs), *([] if child_rows is not None else [0])]
    name = "build_padded_trees_" + ("double" if top_log_probs.dtype is torch.float64 else "float")
    launch(
        name,
        top_log_probs,
        [*pointers, batch, rows, ranks, budget, *map(torch.Tensor.data_ptr, outputs)],
    )
    return outputs


def verify_trees(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Walk a batch of trees straight from logits, each as `verify_tree` does; only visited rows are read.

    logits [B, n, V] in float32, bfloat16 or float16, each row contiguous; candidates and retrieve_* int64 [B,
    n], coins float32 [B, n], final_coins float32 [B]. Returns path int64 [B, n] (nodes, root first), outcome
    int64 [B, 4] (accepted drafts, tried nodes, bonus token, its source: full_row, residual, argmax,
    last_tried), bonus float64 [B, 3] (bonus_prob, bonus_cumulative, residual_mass), tried int64 [B, n, 2]
    (node, accepted), decisions float64 [B, n, 3] (prob, cumulative, coin), status int32 [B]: 0, or 8 * node +
    fault. What a walk does not use is -1 in integers, 0 in numbers. Raises ValueError for shapes, dtypes and
    devices.
    """
    if logits.dim() != 3 or logits.dtype not in ELEMENTS or 0 in logits.shape[1:]:
        given = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(
            f"logits must be [trees, nodes, vocabulary] in float32, bfloat16 or float16, not {given}"
        )
    batch, nodes, size = logits.shape
    integers = {
        "candidates": candidates,
        "retrieve_next_token": retrieve_next_token,
        "retrieve_next_sibling": retrieve_next_sibling,
    }
    for name, array in integers.items():
        _check(name, array, torch.int64, (batch, nodes), logits.device)
    _check("coins", coins, torch.float32, (batch, nodes), logits.device)
    _check("final_coins", final_coins, torch.float32, (batch,), logits.device)
    if logits.stride(2) != 1:
        logits = logits.contiguous()
    inputs = [tensor.contiguous() for tensor in (*integers.values(), coins, final_coins)]
    empty = candidates.new_empty
    outputs = (
        empty(batch, nodes),
        empty(batch, 4),
        empty(batch, 3, dtype=torch.float64),
        empty(batch, nodes, 2),
        empty(batch, nodes, 3, dtype=torch.float64),
        empty(batch, dtype=torch.int32),
    )
    rows = [logits.data_ptr(), ELEMENTS[logits.dtype], size, logits.stride(1), logits.stride(0)]
    rule = [temperature, top_k, top_p, threshold_single, threshold_acc]
    launch(
        "verify_batch",
        logits,
        [
            *rows,
            *map(torch.Tensor.data_ptr, inputs),
            *rule,
            batch,
            nodes,
            *map(torch.Tensor.data_ptr, outputs),
        ],
        rows_of_scratch=(batch, size, nodes),
    )
    return outputs


def launch(
    name: str, on: torch.Tensor, arguments: list[Any], rows_of_scratch: tuple[int, int, int] | None = None
) -> None:
    """Call a kernel on the device of `on`: on the CPU at once, on CUDA on its current stream, with scratch
    memory for `rows_of_scratch` = (batch, V, n) where the kernel takes some."""
    if on.is_cpu:
        getattr(_kernels, name)(*arguments)
        return
    kernels = _cuda_kernels(on)
    with torch.cuda.device(on.device):
        if rows_of_scratch is not None:
            batch, size, nodes = rows_of_scratch
            room = batch * kernels.sampler_scratch_bytes(size, nodes)
            scratch = torch.empty(room, dtype=torch.uint8, device=on.device)
            arguments = [*arguments, scratch.data_ptr()]
        getattr(kernels, name)(*arguments, torch.cuda.current_stream().cuda_stream)


def has_kernels_for(tensor: torch.Tensor) -> bool:
    """Whether the kernels of this build run on the tensor's device."""
    return tensor.is_cpu or (tensor.is_cuda and _kernels.cuda is not None)


def describe_kernels() -> list[str]:
    """What was built, and what of it this machine can run, a line each."""
    lines = [f"kernels: {_kernels.instruction_set()} on the CPU"]
    if _kernels.cuda is None:
        return [*lines, f"kernels: none on CUDA; {_NO_CUDA}"]
    names, problem = _kernels.cuda.devices()
    built = ", ".join(_kernels.cuda.architectures())
    here = ", ".join(names) or f"no device here ({problem or 'none was found'})"
    return [*lines, f"kernels: CUDA for {built} and, compiled when loaded, what comes later; {here}"]


def _cuda_kernels(on: torch.Tensor) -> Any:
    if not on.is_cuda:
        raise ValueError(f"the tensors are on {on.device}; the kernels run on the CPU and on CUDA")
    if _kernels.cuda is None:
        raise ValueError(f"the tensors are on {on.device}; {_NO_CUDA}")
    return _kernels.cuda


def _largest_budget(on: torch.Tensor) -> int:
    return 2**20 if on.is_cpu else int(_cuda_kernels(on).LARGEST_BUDGET)


def _check(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], device: torch.device
) -> None:
    if tensor.dtype != dtype or tensor.shape != torch.Size(shape) or tensor.device != device:
        given = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} must be {dtype} {list(shape)} on {device}, not {given}")
