"""What a program loads once before it decodes: the target, the drafters, and the thread count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddtree.drafters.base import Drafter
from ddtree.drafters.hybrid import HybridDrafter
from ddtree.drafters.ngram import NgramDrafter
from ddtree.models import DrafterUnavailable, load_drafter, load_target
from ddtree.target import Target


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """`drafters` in order of preference; `not_used` says why no trained drafter is among them."""

    target: Target
    drafters: tuple[Drafter, ...]
    not_used: str | None


def load_engine(
    model: str | None = None,
    draft_model: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    progress: Callable[[str, float | None], None] | None = None,
    device_map: str | None = None,
) -> LoadedEngine:
    """Load a target and its drafters by name. A drafter that does not fit leaves the n-gram drafter, and
    the reason; one asked for by name that cannot be loaded raises, like a target (ValueError, OSError)."""
    if threads is not None:
        torch.set_num_threads(threads)
    target = load_target(model, device, dtype, progress, device_map)
    if draft_model == "none":
        return LoadedEngine(target, (NgramDrafter(),), "loading one was switched off (--draft-model none)")
    try:
        trained = load_drafter(draft_model, target=target)
    except DrafterUnavailable as error:
        if draft_model is not None:
            raise
        return LoadedEngine(target, (NgramDrafter(),), str(error))
    return LoadedEngine(target, (HybridDrafter(trained), trained, NgramDrafter()), None)
