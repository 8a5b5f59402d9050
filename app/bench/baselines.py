"""What the bench compares with: transformers' own `generate` on a model that nothing of ours has touched:
sdpa, the default cache, plain linear layers, no streamer, and every logits processor off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.bench.lanes import Lane

Generated = tuple[list[int], int]
"""Token ids (a stop token included), and the target passes that made them."""


def untouched_model(name: str | None, dtype: torch.dtype, device: torch.device) -> Any:
    """The target of this name (None: the default) as transformers itself loads it, its generation_config
    emptied: `generate` takes from there whatever it is not told, repetition penalties and the like."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    from ddtree.models import locate

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would write over the caller's lines
    source, _ = locate(name, lambda what, fraction: None)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="sdpa")
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return model.to(device).eval()


def generate(
    model: Any,
    prompt_ids: Sequence[int],
    new_tokens: int,
    stop: Sequence[int],
    temperature: float = 0.0,
    assistant: Any = None,
    **speculation: Any,
) -> Generated:
    """One text. `speculation`: fields of the generation configuration, with `assistant` as its drafter."""
    from transformers import GenerationConfig

    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=new_tokens,
        eos_token_id=list(stop) or None,
        pad_token_id=0,
        **sampling,
        **speculation,
    )
    ids = torch.tensor([list(prompt_ids)], device=model.device)
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    options = {} if assistant is None else {"assistant_model": assistant}
    hook = model.register_forward_hook(count)
    try:
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **options
            )
    finally:
        hook.remove()
    return [int(i) for i in output[0, len(prompt_ids) :]], passes


class Baselines:
    """The untouched model and the drafters beside it, each loaded when a lane first needs it.

    load_assistant: a drafter by its name, None: the one that this project's lanes draft with.
    """

    def __init__(self, load_model: Callable[[], Any], load_assistant: Callable[[str | None], Any]) -> None:
        self._load_model, self._load_assistant = load_model, load_assistant
        self._model: Any = None
        self._assistants: dict[str, Any] = {}  # by their lane's label

    def load(self, lane: Lane) -> None:
        """What a baseline needs. Raises ValueError, OSError where it cannot be had."""
        if lane.name == "dflash-generate" and lane.label not in self._assistants:
            self._assistants[lane.label] = self._load_assistant(lane.draft_model)
        if lane.settings is None and self._model is None:
            self._model = self._load_model()

    def generate(
        self,
        lane: Lane,
        prompt_ids: Sequence[int],
        new_tokens: int,
        stop: Sequence[int],
        temperature: float,
        seed: int,
    ) -> Generated:
        torch.manual_seed(seed)
        assistant: Any = None
        speculation: dict[str, Any] = {}
        if lane.name == "prompt-lookup":
            speculation = {"prompt_lookup_num_tokens": lane.lookup_tokens}
        elif lane.name == "dflash-generate":
            assistant, speculation = self._assistants[lane.label], {"speculation_type": "dflash"}
        return generate(self._model, prompt_ids, new_tokens, stop, temperature, assistant, **speculation)
