"""The configuration of a DFlash checkpoint in the z-lab layout, read strictly: a wrong or missing key would
cost acceptance silently, so every fault is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Slots = Literal["masks", "heads"]


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    block_size: int  # the root and block_size - 1 drafted positions
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # tap i is the target's hidden_states[i + 1]
    num_layers: int
    hidden_size: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_context: int
    vocab_size: int
    num_target_layers: int | None
    # what the z-lab layout does not have; see dflash_slots
    direct_path: bool = False
    slots: Slots = "masks"
    slot_intermediate_size: int = 0  # of the heads' gated unit; 0 without heads
    target_fingerprint: str | None = None  # of the target it was trained for; None: not recorded


def read_config(folder: Path) -> DFlashConfig:
    """Reads config.json. Raises ValueError naming the key that is missing, wrong or not supported."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} holds no config.json")
    return parse_config(json.loads(file.read_text()))


def parse_config(config: Mapping[str, Any]) -> DFlashConfig:
    """Raises ValueError naming the key that is missing, wrong or not supported."""
    nested = config.get("dflash_config") or {}
    heads = _integer(config, "num_attention_heads")
    hidden_size = _integer(config, "hidden_size")
    layers = _integer(config, "num_hidden_layers")
    kinds = set(config.get("layer_types") or []) - {"full_attention"}
    if kinds:
        raise ValueError(f"layer_types has {', '.join(sorted(kinds))}; only full_attention layers can be run")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported; the layout's is 'silu'")
    if config.get("attention_bias"):
        raise ValueError("attention_bias is set; the layout has no biases")
    taps = nested.get("target_layer_ids")
    if not isinstance(taps, list) or not taps or not all(type(tap) is int for tap in taps):
        raise ValueError(f"dflash_config.target_layer_ids must be a list of layers, not {taps!r}")
    return DFlashConfig(
        block_size=_integer(config, "block_size", at_least=2),
        mask_token_id=_integer(nested, "mask_token_id", at_least=0, where="dflash_config."),
        target_layer_ids=tuple(taps),
        num_layers=layers,
        hidden_size=hidden_size,
        num_heads=heads,
        num_key_heads=_integer(config, "num_key_value_heads"),
        head_dim=_integer(config, "head_dim") if config.get("head_dim") is not None else hidden_size // heads,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(config),
        max_context=_integer(config, "max_position_embeddings"),
        vocab_size=_integer(config, "vocab_size"),
        num_target_layers=None
        if config.get("num_target_layers") is None
        else _integer(config, "num_target_layers"),
        direct_path=_direct_path(nested),
        slots=_slots(nested),
        slot_intermediate_size=_integer(nested, "slot_intermediate_size", where="dflash_config.")
        if _slots(nested) == "heads"
        else 0,
        target_fingerprint=None
        if nested.get("target_fingerprint") is None
        else str(nested["target_fingerprint"]),
    )


def _direct_path(nested: Mapping[str, Any]) -> bool:
    value = nested.get("direct_path", False)
    if type(value) is not bool:
        raise ValueError(f"dflash_config.direct_path must be true or false, not {value!r}")
    return value


def _slots(nested: Mapping[str, Any]) -> Slots:
    value: Slots = nested.get("slots", "masks")
    if value not in get_args(Slots):
        raise ValueError(f"dflash_config.slots must be {' or '.join(get_args(Slots))}, not {value!r}")
    return value


def _rope_theta(config: Mapping[str, Any]) -> float:
    """rope_parameters.rope_theta where it is given, else the older top-level rope_theta."""
    nested = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    kind = nested.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        key = "rope_parameters.rope_type" if nested.get("rope_type") else "rope_scaling"
        raise ValueError(f"{key} {kind!r} is not supported; only 'default' is")
    theta = nested.get("rope_theta", config.get("rope_theta"))
    if not isinstance(theta, (int, float)) or isinstance(theta, bool) or theta <= 0:
        raise ValueError(
            f"rope_theta must be a positive number, at top level or in rope_parameters, not {theta!r}"
        )
    return float(theta)


def _integer(values: Mapping[str, Any], key: str, at_least: int = 1, where: str = "") -> int:
    value = values.get(key)
    if value is None:
        raise ValueError(f"{where}{key} is missing")
    if type(value) is not int or value < at_least:
        raise ValueError(f"{where}{key} must be an integer of at least {at_least}, not {value!r}")
    return value


def check_target(
    config: DFlashConfig, *, num_layers: int, hidden_size: int, vocab_size: int, own_vocabulary: bool = False
) -> None:
    """Whether the checkpoint fits a target of this shape. own_vocabulary: it brings a head and a table of its
    own tokens. Raises ValueError naming the key or the ids."""
    bad = [tap for tap in config.target_layer_ids if not 0 <= tap < num_layers]
    if bad:
        raise ValueError(
            f"dflash_config.target_layer_ids has {bad}; the target has layers 0 to {num_layers - 1}"
        )
    if config.num_target_layers not in (None, num_layers):
        raise ValueError(
            f"num_target_layers is {config.num_target_layers}; the target has {num_layers} layers"
        )
    if config.hidden_size != hidden_size:
        raise ValueError(f"hidden_size is {config.hidden_size}; the target's is {hidden_size}")
    if config.vocab_size != vocab_size and not own_vocabulary:
        low, high = sorted((config.vocab_size, vocab_size))
        lacking = "the target" if config.vocab_size > vocab_size else "the drafter"
        raise ValueError(
            f"its vocabulary has {config.vocab_size} tokens, the target's {vocab_size}: ids such as {low} "
            f"and {high - 1} mean nothing to {lacking}"
        )
    if config.mask_token_id >= vocab_size:
        raise ValueError(
            f"dflash_config.mask_token_id is {config.mask_token_id}; the target has {vocab_size} tokens"
        )
