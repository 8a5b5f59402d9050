"""A checkpoint as transformers' own drafter; its arithmetic is compared in test_dflash.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ddtree.drafters.assistant import load_assistant
from ddtree.drafters.dflash import DFlashModel
from ddtree.drafters.dflash_config import parse_config

CONFIG: dict[str, Any] = {
    "block_size": 4,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rope_theta": 1e4,
    "max_position_embeddings": 64,
    "vocab_size": 11,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1]},
}


def checkpoint(folder: Path, more: dict[str, torch.Tensor] | None = None, **nested: Any) -> dict[str, Any]:
    """A checkpoint in `folder`; returns its tensors."""
    config = {**CONFIG, "dflash_config": {**CONFIG["dflash_config"], **nested}}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {**DFlashModel(parse_config(CONFIG), 24).state_dict(), **(more or {})}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_weights_and_configuration_are_the_checkpoints(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, {"embed_tokens.weight": torch.zeros(11, 16)})
    model = load_assistant(tmp_path, torch.bfloat16)
    found = model.state_dict()
    assert torch.equal(found["encoder.fc.weight"], tensors["fc.weight"].bfloat16())
    assert torch.equal(
        found["layers.0.mlp.down_proj.weight"], tensors["layers.0.mlp.down_proj.weight"].bfloat16()
    )
    config = model.config
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (4, 3, [0, 1])
    assert config.layer_types == ["full_attention"]


@pytest.mark.parametrize(
    ("more", "nested", "what"),
    [
        ({"d2t": torch.zeros(4, dtype=torch.int64)}, {}, "a vocabulary of its own"),
        ({}, {"direct_path": True}, "a direct path"),
        (
            {},
            {"direct_path": True, "slots": "heads", "slot_intermediate_size": 8},
            "a direct path and slot heads",
        ),
    ],
)
def test_what_transformers_cannot_run_is_named(
    tmp_path: Path, more: dict[str, torch.Tensor], nested: dict[str, Any], what: str
) -> None:
    checkpoint(tmp_path, more, **nested)
    with pytest.raises(ValueError, match=f"transformers' DFlash cannot run {tmp_path.name}: it has {what}$"):
        load_assistant(tmp_path, torch.float32)
