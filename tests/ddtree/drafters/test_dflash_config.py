"""Drafter configurations as people ship them, and the faults that would cost acceptance in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddtree.drafters.dflash_config import check_target, parse_config, read_config

SHIPPED = Path(__file__).parents[3] / "ddtree" / "pretrained" / "smollm2-135m-dflash"


def config(**changes: Any) -> dict[str, Any]:
    """A minimal configuration; a change to None removes the key."""
    base: dict[str, Any] = {
        "block_size": 8,
        "dflash_config": {"mask_token_id": 16, "target_layer_ids": [1, 3]},
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 10000,
        "max_position_embeddings": 512,
        "vocab_size": 211,
        **changes,
    }
    return {key: value for key, value in base.items() if value is not None}


def test_the_shipped_checkpoint() -> None:
    shipped = read_config(SHIPPED)
    assert shipped.block_size == 8
    assert shipped.target_layer_ids == (1, 8, 15, 22, 29)
    assert (shipped.num_layers, shipped.num_heads, shipped.num_key_heads, shipped.head_dim) == (1, 9, 3, 64)
    assert (shipped.direct_path, shipped.slots, shipped.slot_intermediate_size) == (True, "heads", 768)
    assert shipped.target_fingerprint is not None
    assert shipped.rope_theta == 100000.0
    check_target(shipped, num_layers=30, hidden_size=576, vocab_size=49152)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": None, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
        {"rope_theta": 5000.0},
        {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 5000.0}},
        {"rope_theta": 5000.0, "rope_scaling": None},
        {"rope_theta": 5000.0, "rope_parameters": {"rope_type": "default"}},
    ],
)
def test_rope_theta_nested_first_then_top_level(rope: dict[str, Any]) -> None:
    parsed = parse_config({**config(), **{key: rope.get(key) for key in ("rope_theta", *rope)}})
    assert parsed.rope_theta == 5000.0


def test_what_the_layout_does_not_have_is_off_unless_the_checkpoint_says_so() -> None:
    plain = parse_config(config())
    assert (plain.direct_path, plain.slots, plain.slot_intermediate_size) == (False, "masks", 0)
    assert plain.target_fingerprint is None
    nested = {
        **config()["dflash_config"],
        "direct_path": True,
        "slots": "heads",
        "slot_intermediate_size": 96,
        "target_fingerprint": "0123456789abcdef",
    }
    ours = parse_config(config(dflash_config=nested))
    assert (ours.direct_path, ours.slots, ours.slot_intermediate_size) == (True, "heads", 96)
    assert ours.target_fingerprint == "0123456789abcdef"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"direct_path": 1}, "dflash_config.direct_path must be true or false, not 1"),
        ({"slots": "tails"}, "dflash_config.slots must be masks or heads, not 'tails'"),
        ({"slots": "heads"}, "dflash_config.slot_intermediate_size is missing"),
    ],
)
def test_what_is_said_of_it_must_make_sense(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_config(config(dflash_config={**config()["dflash_config"], **changed}))


def test_head_dim_defaults_to_the_heads_share() -> None:
    assert parse_config(config()).head_dim == 16
    assert parse_config(config(head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": {"target_layer_ids": [1]}}, "dflash_config.mask_token_id is missing"),
        (
            {"dflash_config": {"mask_token_id": 1}},
            "dflash_config.target_layer_ids must be a list of layers, not None",
        ),
        ({"dflash_config": None}, "dflash_config.target_layer_ids must be a list"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "target_layer_ids must be a list"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [True]}},
            "target_layer_ids must be a list",
        ),
        ({"block_size": None}, "block_size is missing"),
        ({"block_size": 1}, "block_size must be an integer of at least 2, not 1"),
        ({"block_size": "8"}, "block_size must be an integer"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"rope_theta": None}, "rope_theta must be a positive number"),
        ({"rope_theta": -1}, "rope_theta must be a positive number"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.rope_type 'llama3' is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias is set"),
    ],
)
def test_faults_name_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^(dflash_config.)?" + message.replace(".", r"\.")):
        parse_config(config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"target_layer_ids has \[3\]; the target has layers 0 to 2"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [-1]}}, r"target_layer_ids has \[-1\]"),
    ],
)
def test_taps_outside_the_target(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_target(parse_config(config(**changes)), num_layers=3, hidden_size=64, vocab_size=211)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_target_layers": 30}, "num_target_layers is 30; the target has 4 layers"),
        ({"hidden_size": 128}, "hidden_size is 128; the target's is 64"),
        (
            {"vocab_size": 300},
            "has 300 tokens, the target's 211: ids such as 211 and 299 mean nothing to the target",
        ),
        (
            {"vocab_size": 200},
            "has 200 tokens, the target's 211: ids such as 200 and 210 mean nothing to the drafter",
        ),
        ({"dflash_config": {"mask_token_id": 211, "target_layer_ids": [1]}}, "mask_token_id is 211"),
    ],
)
def test_a_checkpoint_for_another_target(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_target(parse_config(config(**changes)), num_layers=4, hidden_size=64, vocab_size=211)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert read_config(tmp_path).block_size == 8
