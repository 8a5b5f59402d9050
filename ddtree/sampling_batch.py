"""The sampler from probabilities, with the arrays of SGLang's tree_speculative_sampling_target_only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

from ddtree.launch import launch
from ddtree.retrieve import validate_topology
from ddtree.sampling_faults import fault_of_status, unpack_status

_Parameters = ParamSpec("_Parameters")


def _takes_older_spelling(function: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Also take SGLang's `retrive_*` keywords."""

    @functools.wraps(function)
    def spelled(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        for older in [name for name in kwargs if name.startswith("retrive_")]:
            newer = older.replace("retrive_", "retrieve_", 1)
            if newer in kwargs:
                raise TypeError(f"{newer} is given twice, once as {older}")
            kwargs[newer] = kwargs.pop(older)
        function(*args, **kwargs)

    return spelled


@_takes_older_spelling
def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    status: torch.Tensor | None = None,
) -> None:
    """Walk `bs` trees of n nodes with rows of probabilities, writing the outcome in place.

    Outputs, whose unused slots keep the caller's values: predicts int32 [tot] gets, at the retrieve_index of
    each node of the path, the token after it (the bonus token at the last); accept_index int32 [bs, S] the
    retrieve_index of the path, root first, at most S - 1 drafts; accept_token_num int32 [bs] the accepted
    drafts.

    Inputs: candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling int64 [bs, n] (the older
    keywords `retrive_*` are taken too); uniform_samples float32 [bs, n], a coin for each node;
    uniform_samples_for_final_sampling float32 [bs]; target_probs float32 [bs, n, V], of which only visited
    rows are read. `draft_probs` is there for the interface's sake and is neither read nor written, and the
    result is deterministic whatever `deterministic` says.

    All tensors are on one device; on CUDA the kernel runs on the current stream, and without `status` the
    call synchronises. Without `status` every topology is checked before anything is written (ValueError), and
    a visited row with NaN, +inf, a negative entry or no mass raises SamplingFault naming batch row and node,
    after the healthy batch rows were written. With `status` (int32 [bs]) nothing raises: it gets 0, or 8 *
    node + the kind of fault. Either way a faulty batch row leaves its outputs untouched.
    """
    inputs = {
        "candidates": candidates,
        "retrieve_index": retrieve_index,
        "retrieve_next_token": retrieve_next_token,
        "retrieve_next_sibling": retrieve_next_sibling,
        "uniform_samples": uniform_samples,
        "uniform_samples_for_final_sampling": uniform_samples_for_final_sampling,
        "target_probs": target_probs,
    }
    outputs = {"predicts": predicts, "accept_index": accept_index, "accept_token_num": accept_token_num}
    outcomes = candidates.new_zeros(len(candidates), dtype=torch.int32) if status is None else status
    _check_shapes(inputs, outputs | {"status": outcomes})
    check_thresholds(threshold_single, threshold_acc)
    if status is None:
        _check_topologies(candidates, retrieve_next_token, retrieve_next_sibling)
    given = {name: tensor.detach().contiguous() for name, tensor in inputs.items()}
    batch, nodes, size = target_probs.shape
    pointers = [tensor.data_ptr() for tensor in (*outputs.values(), *given.values(), outcomes)]
    sizes = [predicts.numel(), size, batch, nodes, accept_index.shape[1]]
    thresholds: list[Any] = [threshold_single, threshold_acc]
    launch(
        "target_only", target_probs, [*pointers, *sizes, *thresholds], rows_of_scratch=(batch, size, nodes)
    )
    if status is None:
        for batch_row in outcomes.nonzero().flatten().tolist():
            outcome = int(outcomes[batch_row])
            row = target_probs[batch_row, unpack_status(outcome)[0]]
            raise fault_of_status(outcome, row, batch_row)


def check_thresholds(threshold_single: float, threshold_acc: float) -> None:
    """Raises ValueError for one that is not in 0..1."""
    for name, value in (("threshold_single", threshold_single), ("threshold_acc", threshold_acc)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it must lie in 0..1")


def _check_shapes(inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    probs = inputs["target_probs"]
    if probs.dim() != 3 or 0 in probs.shape[1:]:
        raise ValueError(f"target_probs must be [batch, nodes, vocabulary], not {list(probs.shape)}")
    batch, nodes, size = probs.shape
    path = outputs["accept_index"].shape[-1]
    if path < 1:
        raise ValueError("accept_index must have room for the root: [batch, deepest path + 1]")
    integers, floats, outs = torch.int64, torch.float32, torch.int32
    expected = {
        "candidates": (integers, (batch, nodes)),
        "retrieve_index": (integers, (batch, nodes)),
        "retrieve_next_token": (integers, (batch, nodes)),
        "retrieve_next_sibling": (integers, (batch, nodes)),
        "uniform_samples": (floats, (batch, nodes)),
        "uniform_samples_for_final_sampling": (floats, (batch,)),
        "target_probs": (floats, (batch, nodes, size)),
        "predicts": (outs, (outputs["predicts"].numel(),)),
        "accept_index": (outs, (batch, path)),
        "accept_token_num": (outs, (batch,)),
        "status": (outs, (batch,)),
    }
    for name, tensor in (inputs | outputs).items():
        dtype, shape = expected[name]
        if tensor.dtype != dtype or tensor.shape != shape:
            raise ValueError(f"{name} must be {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")
        if tensor.device != probs.device:
            raise ValueError(f"{name} is on {tensor.device}, target_probs on {probs.device}")
    for name, tensor in outputs.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is written in place and must be contiguous")


def _check_topologies(candidates: torch.Tensor, next_token: torch.Tensor, next_sibling: torch.Tensor) -> None:
    for batch_row in range(len(candidates)):
        try:
            validate_topology(next_token[batch_row], next_sibling[batch_row], candidates[batch_row])
        except ValueError as fault:
            raise ValueError(f"batch row {batch_row}: {fault}") from None
