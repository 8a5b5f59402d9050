"""A small DFlash configuration for the tiny targets, and random weights for it."""

from __future__ import annotations

import torch
from tiny_models import VOCAB

from ddtree.drafters.dflash import DFlashModel
from ddtree.drafters.dflash_config import DFlashConfig

CONFIG = DFlashConfig(
    block_size=6,
    mask_token_id=4,
    target_layer_ids=(0, 2, 3),
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_key_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=5000.0,
    max_context=256,
    vocab_size=VOCAB,
    num_target_layers=4,
)


def random_model(config: DFlashConfig, intermediate_size: int = 96) -> DFlashModel:
    model = DFlashModel(config, intermediate_size)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * 0.2 if weight.ndim > 1 else 1 + noise * 0.1)
    return model.requires_grad_(False)
