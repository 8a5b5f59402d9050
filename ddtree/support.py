"""Whether a model can be tree-verified: what its configuration says, and what a probe of it shows.

A tree pass needs attention that takes any mask, a cache row per token that can be moved, and positions that
are given and not counted. What lacks one of them is refused at load with the reason, never run wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, get_layer_types_and_kwargs

from ddtree.errors import UnsupportedModel
from ddtree.kvcache import LayerShape

_HANDLED = {"full_attention", "sliding_attention", "dummy"}
_RECURRENT = ("linear", "mamba", "conv", "recurrent", "ssm", "hybrid")


def check_config(name: str, config: Any) -> None:
    """Refuses by configuration, before weights are read. Raises UnsupportedModel."""
    if config.is_encoder_decoder:
        raise UnsupportedModel(
            f"{name} is an encoder-decoder model; a target is a decoder that scores its own prompt"
        )
    wanted = config._attn_implementation or ""
    if "flash" in wanted:
        raise UnsupportedModel(f"{name} asks for {wanted}, which takes no tree mask")
    types, _ = get_layer_types_and_kwargs(config.get_text_config())
    for layer, kind in enumerate(types):
        if kind in _HANDLED:
            continue
        if any(word in kind for word in _RECURRENT):
            raise UnsupportedModel(
                f"{name} has recurrent layers (layer {layer}: {kind}), whose state runs along one "
                "sequence and cannot branch into a tree"
            )
        raise UnsupportedModel(f"{name} has layers of a kind that no tree mask fits (layer {layer}: {kind})")


def layer_windows(config: Any) -> list[int]:
    """Each layer's sliding window in tokens, 0 where it sees everything."""
    types, options = get_layer_types_and_kwargs(config.get_text_config())
    return [
        int(option["sliding_window"]) if kind == "sliding_attention" else 0
        for kind, option in zip(types, options, strict=True)
    ]


@torch.inference_mode()
def probe_layers(name: str, model: Any) -> tuple[list[LayerShape | None], int]:
    """Runs one token and reads from transformers' own cache what each layer keeps. Returns the shapes and the
    width of the logits. Raises UnsupportedModel."""
    parameters = inspect.signature(model.forward).parameters
    if "cache" not in parameters or "position_ids" not in parameters:
        missing = "key/value cache" if "cache" not in parameters else "position_ids"
        raise UnsupportedModel(
            f"{name} ({type(model).__name__}) takes no {missing}, so no tree can be put to it"
        )
    cache = DynamicCache(config=model.config)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    logits = model(input_ids=ids, position_ids=ids, cache=cache, use_cache=True).logits
    shapes: list[LayerShape | None] = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, DummyLayer):
            shapes.append(None)
        elif isinstance(layer, DynamicLayer) and not hasattr(layer, "update_indexer"):
            keys, values = layer.keys, layer.values
            assert keys is not None and values is not None
            elsewhere = None if keys.device == model.device else keys.device
            shapes.append(LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1], elsewhere))
        else:
            raise UnsupportedModel(
                f"{name} keeps more than keys and values in layer {index} ({type(layer).__name__}), which a "
                "tree cannot branch"
            )
    if not any(shapes):
        raise UnsupportedModel(f"{name} ({type(model).__name__}) keeps no keys and values")
    return shapes, int(logits.shape[-1])


# Prefix of three tokens, then a tree: the root, two children, a child of each child.
_PREFIX = 3
_PARENTS = (-1, 0, 0, 1, 2)


def tree_pass(target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores the small tree behind the prefix: all token ids, prefix first; logits [nodes, V] in float32."""
    ids = torch.arange(_PREFIX + len(_PARENTS), device=target.device) * 7 % min(target.vocab_size, 997) + 1
    ids %= target.vocab_size
    cache = target.new_cache(_PREFIX + len(_PARENTS))
    for _ in target.prefill(cache, ids[:_PREFIX].tolist()):
        pass
    paths = [_path(node) for node in range(len(_PARENTS))]
    visibility = torch.zeros(len(_PARENTS), len(_PARENTS), dtype=torch.bool, device=target.device)
    for node, path in enumerate(paths):
        visibility[node, path] = True
    positions = torch.tensor([_PREFIX + len(path) - 1 for path in paths], device=target.device)
    return ids, target.verify(cache, ids[_PREFIX:], positions, visibility).float()


@torch.inference_mode()
def check_tree_pass(target: Any) -> None:
    """Compares every node of a small tree with the model's plain forward over the node's path, under
    transformers' own masks. Raises UnsupportedModel when they differ by more than rounding: then the model
    ignores the mask or the positions somewhere."""
    ids, logits = tree_pass(target)
    tolerance = 1e-3 if target.dtype == torch.float32 else 0.1
    for node in (3, 4):
        path = _path(node)
        sequence = torch.cat((ids[:_PREFIX], ids[_PREFIX:][path]))
        expected = target.model(input_ids=sequence[None], use_cache=False).logits[0, _PREFIX:].float()
        spread = (expected - expected.mean(-1, keepdim=True)).norm()
        error = ((logits[path] - expected).norm() / spread.clamp_min(1e-6)).item()
        if not error <= tolerance:
            raise UnsupportedModel(
                f"{target.name} ({type(target.model).__name__}) scores a tree differently from its paths "
                f"(relative error {error:.2g}): it does not follow the mask and the positions it is given"
            )


def _path(node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = _PARENTS[node]
    return path


def rope_notes(config: Any) -> list[str]:
    """Rotary embeddings that depend on how long the pass is, and not on a token's position alone."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kind = parameters.get("rope_type")
    if kind not in ("dynamic", "longrope"):
        return []
    return [
        f"the rotary embedding ({kind}) changes where a sequence grows past a length: a tree that reaches "
        "past it is scored by the longer rule a few tokens early"
    ]


def generation_notes(model: Any) -> list[str]:
    """What the model's generation_config asks of `generate` and a run here does not do."""
    neutral: dict[str, Sequence[Any]] = {
        "repetition_penalty": (None, 1.0),
        "no_repeat_ngram_size": (None, 0),
        "encoder_repetition_penalty": (None, 1.0),
        "min_new_tokens": (None, 0),
        "min_length": (None, 0),
        "bad_words_ids": (None, []),
        "suppress_tokens": (None, []),
        "begin_suppress_tokens": (None, []),
        "forced_bos_token_id": (None,),
        "forced_eos_token_id": (None,),
        "sequence_bias": (None,),
        "exponential_decay_length_penalty": (None,),
        "num_beams": (None, 1),
        "typical_p": (None, 1.0),
        "min_p": (None, 0.0),
        "epsilon_cutoff": (None, 0.0),
        "eta_cutoff": (None, 0.0),
        "guidance_scale": (None, 1.0),
    }
    config = model.generation_config
    asked = {key: getattr(config, key, None) for key in neutral}
    return [
        f"generation_config asks for {key} = {value}, which is not applied"
        for key, value in asked.items()
        if value not in neutral[key]
    ]
