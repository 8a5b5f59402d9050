"""The target as transformers loads it: batches, gradients through nothing, an embedding that can be indexed.
`load_target` repacks its weights for decoding, which none of these survives."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ddtree.errors import ModelUnavailable
from ddtree.loading import _no_progress_bar as no_progress_bar
from ddtree.loading import load_tokenizer, pick_device, pick_dtype
from ddtree.models import locate
from ddtree.storage import Progress


def load_plain(name: str | None, device: str, dtype: str, progress: Progress) -> tuple[Any, Any, str]:
    """(model, tokenizer, shown name), in inference mode. Raises ModelUnavailable, ValueError (a bad device or
    dtype)."""
    from transformers import AutoModelForCausalLM

    place = pick_device(device)
    chosen = pick_dtype(dtype, place)
    source, shown = locate(name, progress)
    progress(f"reading {shown}", None)
    tokenizer = load_tokenizer(source, shown)
    try:
        with no_progress_bar(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=chosen, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelUnavailable(
            f"{shown} could not be loaded: {str(error).strip().splitlines()[0]}"
        ) from error
    if not isinstance(model.get_output_embeddings(), torch.nn.Linear):
        raise ModelUnavailable(f"{shown} has no linear output head; a drafter shares the target's")
    return model.to(place).eval().requires_grad_(False), tokenizer, shown
