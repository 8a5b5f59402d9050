"""What a trace and the page say of the machinery: engine, target and drafter in the trace's models."""

from __future__ import annotations

import platform

import torch
import transformers

import ddtree
from ddtree import _kernels
from ddtree.drafters.base import Drafter
from ddtree.target import Target
from ddtree.trace import DrafterInfo, Engine, TargetInfo


def engine_info(target: Target) -> Engine:
    """Versions, and what the target runs on."""
    versions = {
        "ddtree": ddtree.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    return Engine(
        versions=versions,
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        kernels=_kernels.instruction_set(),
    )


def target_info(target: Target) -> TargetInfo:
    return TargetInfo(
        name=target.name,
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        max_context=target.max_context,
        notes=list(target.notes),
    )


def drafter_info(drafter: Drafter, not_used: str | None) -> DrafterInfo:
    """`not_used`: why no trained drafter is there."""
    return DrafterInfo(name=drafter.name, kind=drafter.kind, block_size=drafter.block_size, not_used=not_used)
