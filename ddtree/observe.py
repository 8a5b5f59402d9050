"""What the trace shows of a visited row: the answer to why a node fell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ddtree import _kernels
from ddtree.launch import ELEMENTS
from ddtree.sampling import check_rule, on_host_rows
from ddtree.sampling_faults import fault_of_status


@dataclass(frozen=True, slots=True)
class RowView:
    """The target's distribution at one node. `probs` are those the walk decided with, to the last bit."""

    node: int
    token_ids: list[int]  # the likeliest tokens, likeliest first, the lower id first among equals
    probs: list[float]  # in the distribution sampled from (one-hot where it is greedy)
    raw_probs: list[float]  # softmax(logits)
    child_probs: list[float]  # of the node's children, as probs
    child_raw_probs: list[float]
    entropy: float  # nats, of softmax(logits)
    total_variation: float | None  # of softmax(logits) to the drafter's distribution; None: it has no row


def observe_rows(
    logits: torch.Tensor,
    nodes: Sequence[int],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    children: Sequence[Sequence[int]],
    draft_logits: torch.Tensor | None,
    draft_rows: Sequence[int],
    draft_temperature: float,
    count: int = 8,
) -> list[RowView]:
    """Look at the rows of the visited `nodes` in logits [n, V]; nothing else of it is read.

    temperature, top_k and top_p as in verify_tree. `children` holds the token ids of each node's children,
    `draft_rows` the row of draft_logits [R, V] that its children were drafted from (-1: none); the drafter's
    distribution is softmax(draft_logits[row] / draft_temperature). Tokens of logit -inf are not shown. Raises
    SamplingFault for a row that cannot be sampled from.
    """
    check_rule(temperature, top_k, top_p)
    if logits.dim() != 2 or logits.dtype not in ELEMENTS:
        given = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(f"logits must be [nodes, vocabulary] in float32, bfloat16 or float16, not {given}")
    if not len(nodes) == len(children) == len(draft_rows):
        lengths = f"{len(nodes)}, {len(children)} and {len(draft_rows)}"
        raise ValueError(f"nodes, children and draft_rows must be equally long, not {lengths}")
    if any(not 0 <= node < len(logits) for node in nodes):
        raise ValueError(f"nodes must lie in 0..{len(logits) - 1}, not {list(nodes)}")
    logits = on_host_rows(logits)
    draft = None if draft_logits is None else _checked_draft(draft_logits, logits.shape[1], draft_rows)
    views = _kernels.observe(
        logits.data_ptr(),
        ELEMENTS[logits.dtype],
        logits.stride(0),
        logits.shape[1],
        list(nodes),
        [list(tokens) for tokens in children],
        temperature,
        top_k,
        top_p,
        0 if draft is None else draft.data_ptr(),
        0 if draft is None else ELEMENTS[draft.dtype],
        0 if draft is None else draft.stride(0),
        list(draft_rows),
        draft_temperature,
        count,
    )
    shown = []
    for node, view in zip(nodes, views, strict=True):
        if isinstance(view, int):
            raise fault_of_status(view, logits[node])
        shown.append(RowView(node, *view))
    return shown


def _checked_draft(draft_logits: torch.Tensor, size: int, draft_rows: Sequence[int]) -> torch.Tensor:
    if draft_logits.dim() != 2 or draft_logits.dtype not in ELEMENTS or draft_logits.shape[1] != size:
        given = f"{draft_logits.dtype} {list(draft_logits.shape)}"
        raise ValueError(f"draft_logits must be [rows, {size}] in float32, bfloat16 or float16, not {given}")
    if any(row >= len(draft_logits) for row in draft_rows):
        raise ValueError(f"draft_rows must lie in -1..{len(draft_logits) - 1}, not {list(draft_rows)}")
    return on_host_rows(draft_logits)
