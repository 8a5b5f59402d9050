"""Loading a causal LM into a Target: checks before the weights, repacking after, a probe at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddtree import _kernels, attention
from ddtree.errors import ModelUnavailable, UnsupportedModel
from ddtree.gguf import Blocks, read_blocks
from ddtree.merged import merge_projections
from ddtree.native import native_pass
from ddtree.packed import pack_model
from ddtree.parallel import Leader, loading_options, spread_of
from ddtree.ranks import Placement
from ddtree.storage import Progress
from ddtree.support import (
    check_config,
    check_tree_pass,
    generation_notes,
    layer_windows,
    probe_layers,
    rope_notes,
)
from ddtree.target import Target

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """auto is CUDA where this build has kernels for it and torch sees a device, else the CPU. Raises
    ValueError."""
    if name == "auto":
        return torch.device("cuda" if _kernels.cuda is not None and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not known; take auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but this torch sees no CUDA device")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto is bfloat16 where it is computed fast (AMX or AVX-512 BF16, CUDA from compute capability 8)."""
    if name in _DTYPES:
        return _DTYPES[name]
    if name != "auto":
        raise ValueError(f"dtype {name!r} is not known; take auto, {', '.join(_DTYPES)}")
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def load(source: str, name: str, placement: Placement, dtype: str, progress: Progress) -> Target:
    """source: a folder or a Hugging Face id. Raises UnsupportedModel, ModelUnavailable, ValueError."""
    from transformers import AutoConfig

    device = pick_device(placement.device)
    chosen = pick_dtype(dtype, device)
    progress("reading the configuration", None)
    config = _fetch(name, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False))
    check_config(name, config)
    progress("reading the tokenizer", None)
    tokenizer = load_tokenizer(source, name)
    progress("reading the weights", None)
    options = loading_options(name, config, placement)
    model = _fetch(name, lambda: _load_model(source, name, config, chosen, options))
    if not options:
        model = model.to(device)
    spread = spread_of(name, model, placement)
    target = make_target(model, tokenizer, name, progress, read_blocks(source), spread)
    if placement.ranks is not None and placement.ranks.leads:
        target.leader = Leader()
    return target


def load_tokenizer(source: str, name: str) -> Any:
    """Raises UnsupportedModel, ModelUnavailable."""
    from transformers import AutoTokenizer

    return _fetch(name, lambda: AutoTokenizer.from_pretrained(source, trust_remote_code=False))


def _load_model(source: str, name: str, config: Any, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    attention.register()

    def read(implementation: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation=implementation,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )

    with _no_progress_bar():
        try:
            model, info = read(attention.ATTENTION)
        except KeyError as error:
            # families with a table of attention classes of their own
            if attention.ATTENTION not in str(error):
                raise
            model, info = read("eager")
    if info["missing_keys"]:
        example = sorted(info["missing_keys"])[0]
        raise UnsupportedModel(
            f"the weights of {name} lack {len(info['missing_keys'])} tensors, such as {example}"
        )
    return model


def make_target(
    model: Any,
    tokenizer: Any,
    name: str,
    progress: Progress = lambda what, fraction: None,
    blocks: Blocks | None = None,
    spread: str | None = None,
) -> Target:
    """A Target from a model in memory whose attention is `ddtree`, or eager. Repacks it in place, unless it
    is spread over devices or processes (then: how, in words). Raises UnsupportedModel when it cannot be
    tree-verified."""
    model.eval().requires_grad_(False)
    check_config(name, model.config)
    notes = generation_notes(model) + rope_notes(model.config)
    try:
        shapes, vocab_size = probe_layers(name, model)
        target = Target(
            model,
            tokenizer,
            name=name,
            layer_shapes=shapes,
            vocab_size=vocab_size,
            max_context=_max_context(model.config, tokenizer),
            layer_windows=layer_windows(model.config),
            stop_token_ids=_stop_token_ids(model, tokenizer),
            notes=notes,
            spread=spread,
        )
        if spread is None:
            progress("packing the weights", None)
            if native_pass(target, blocks) is None and model.device.type == "cpu":
                merge_projections(model)
                target.notes += pack_model(model)
        progress("checking a tree pass", None)
        check_tree_pass(target)
    except UnsupportedModel:
        raise
    except Exception as error:
        # whatever a family's own code raises when it is given a cache, positions or a mask
        raise UnsupportedModel(
            f"{name} ({type(model).__name__}) fails on a tree pass: {_first_line(error)}"
        ) from error
    return target


def _fetch(name: str, get: Callable[[], Any]) -> Any:
    """Runs a transformers loader and turns what it raises into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return get()
    except UnsupportedModel:
        raise
    except OSError as error:
        raise ModelUnavailable(f"{name} could not be loaded: {_first_line(error)}") from error
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{name} cannot be loaded as a causal language model: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers' own bar would write over the caller's progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _max_context(config: Any, tokenizer: Any) -> int:
    text = config.get_text_config()
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if isinstance(getattr(text, key, None), int):
            return int(getattr(text, key))
    limit = getattr(tokenizer, "model_max_length", None) or 0
    return int(limit) if 0 < limit < 10**7 else 2048


def _stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """generation_config.eos_token_id, one or several, and the tokenizer's."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, (list, tuple)) else [configured]
    ids = [int(one) for one in [*several, getattr(tokenizer, "eos_token_id", None)] if one is not None]
    return tuple(dict.fromkeys(ids))
