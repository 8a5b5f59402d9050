"""A DFlash checkpoint as transformers' own drafter: its MuseGlimmerAssistant class computes the same block
(read arithmetically), so it is an independent reference, and what `generate` speculates with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ddtree.drafters.checkpoint import read_tensors
from ddtree.drafters.dflash_config import DFlashConfig, read_config

_NAMES = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
"""The tensors whose names differ; the others are called the same."""


def load_assistant(folder: Path, dtype: torch.dtype) -> Any:
    """The checkpoint in `folder` for `generate(assistant_model=..., speculation_type="dflash")`. Raises
    ValueError for one that transformers cannot run: it knows neither a vocabulary of the drafter's own nor
    what goes beyond the z-lab layout."""
    config = read_config(folder)
    tensors = read_tensors(folder)
    tensors.pop("embed_tokens.weight", None)  # a copy of the target's
    beyond = [
        name
        for name, there in (
            ("a vocabulary of its own", not tensors.keys().isdisjoint({"lm_head.weight", "d2t"})),
            ("a direct path", config.direct_path),
            ("slot heads", config.slots != "masks"),
        )
        if there
    ]
    if beyond:
        raise ValueError(f"transformers' DFlash cannot run {folder.name}: it has {' and '.join(beyond)}")
    return make_assistant(config, tensors).to(dtype)


def make_assistant(config: DFlashConfig, tensors: Mapping[str, torch.Tensor]) -> Any:
    """transformers' model with these weights, float32."""
    from transformers.models.muse_glimmer_assistant import (
        configuration_muse_glimmer_assistant as configuration,
    )
    from transformers.models.muse_glimmer_assistant import modeling_muse_glimmer_assistant as modeling

    model = modeling.MuseGlimmerAssistantModel(
        configuration.MuseGlimmerAssistantConfig(
            hidden_size=config.hidden_size,
            intermediate_size=tensors["layers.0.mlp.gate_proj.weight"].shape[0],
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_key_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_theta": config.rope_theta, "rope_type": "default"},
            max_position_embeddings=config.max_context,
            layer_types=["full_attention"] * config.num_layers,
            block_size=config.block_size,
            mask_token_id=config.mask_token_id,
            target_layer_ids=list(config.target_layer_ids),
        )
    )
    model.load_state_dict({_NAMES.get(name, name): weight.float() for name, weight in tensors.items()})
    return model.requires_grad_(False).train(False)
