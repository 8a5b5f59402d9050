"""What cannot be tree-verified is refused with the reason; what a run does not honour is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import BASE, GPT, NARROW, VOCAB, TinyTokenizer, ours, twins
from transformers import AutoConfig, AutoModelForCausalLM

from ddtree import attention
from ddtree.errors import UnsupportedModel
from ddtree.loading import make_target
from ddtree.support import check_config, layer_windows


def build(kind: str, options: dict[str, Any], implementation: str = attention.ATTENTION) -> Any:
    attention.register()
    config = AutoConfig.for_model(kind, **options)
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation).float()


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("mamba2", {"num_hidden_layers": 2}, "recurrent layers .layer 0: linear_attention.*cannot branch"),
        ("qwen3_next", BASE, "recurrent layers .layer 0: linear_attention"),
        ("recurrent_gemma", BASE, "recurrent layers"),
        ("llama4_text", NARROW, "no tree mask fits .layer 0: chunked_attention"),
        ("t5", {}, "encoder-decoder"),
    ],
)
def test_refused_by_configuration(kind: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check_config("it", AutoConfig.for_model(kind, **options))


def test_flash_attention_takes_no_tree_mask() -> None:
    config = AutoConfig.for_model("llama", **BASE)
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedModel, match="flash_attention_2, which takes no tree mask"):
        check_config("it", config)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (
            "bloom",
            {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4},
            "takes no position_ids",
        ),
        (
            "rwkv",
            {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2},
            "takes no key/value cache",
        ),
    ],
)
def test_refused_by_signature(kind: str, options: dict[str, Any], reason: str) -> None:
    model = build(kind, options, "eager" if kind == "bloom" else attention.ATTENTION)
    with pytest.raises(UnsupportedModel, match=reason):
        make_target(model, TinyTokenizer(), "it")


def test_a_family_that_fails_on_the_pass_is_refused_in_one_sentence() -> None:
    """Falcon with ALiBi builds its bias from a two-dimensional mask."""
    with pytest.raises(UnsupportedModel, match=r"it \(FalconForCausalLM\) fails on a tree pass: "):
        make_target(build("falcon", {**BASE, "alibi": True}, "eager"), TinyTokenizer(), "it")


def test_a_model_that_ignores_the_mask_is_refused() -> None:
    _, reference = twins("llama", BASE)
    model = ours("llama", BASE, reference)
    model.register_forward_pre_hook(
        lambda _, __, given: ((), {**given, "attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(UnsupportedModel, match="scores a tree differently from its paths"):
        make_target(model, TinyTokenizer(), "it")


def test_a_model_that_ignores_the_positions_is_refused() -> None:
    _, reference = twins("llama", BASE)
    model = ours("llama", BASE, reference)
    model.register_forward_pre_hook(
        lambda _, __, given: ((), {**given, "position_ids": None}), with_kwargs=True
    )
    with pytest.raises(UnsupportedModel, match="scores a tree differently from its paths"):
        make_target(model, TinyTokenizer(), "it")


def test_windows_by_layer() -> None:
    uniform = AutoConfig.for_model("mistral", **{**BASE, "sliding_window": 16})
    assert layer_windows(uniform) == [16] * 4
    mixed = AutoConfig.for_model("gemma2", **{**NARROW, "sliding_window": 16})
    assert layer_windows(mixed) == [16, 0, 16, 0]
    assert layer_windows(AutoConfig.for_model("llama", **BASE)) == [0] * 4


def test_what_generate_would_do_and_a_run_does_not_is_named() -> None:
    _, reference = twins("llama", BASE)
    model = ours("llama", BASE, reference)
    model.generation_config.repetition_penalty = 1.2
    model.generation_config.suppress_tokens = [3]
    model.generation_config.temperature = 0.6  # a setting of ours, not something left out
    model.generation_config.eos_token_id = [2, 7]
    target = make_target(model, TinyTokenizer(), "it")
    assert target.notes == [
        "generation_config asks for repetition_penalty = 1.2, which is not applied",
        "generation_config asks for suppress_tokens = [3], which is not applied",
    ]
    assert target.stop_token_ids == (2, 7)


def test_learned_positions_limit_the_context() -> None:
    target, _ = twins("gpt2", GPT)
    assert target.max_context == 256
    assert target.dtype is torch.float32


def test_a_rotary_embedding_that_depends_on_the_length_is_named() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    target, _ = twins("llama", {**BASE, "rope_parameters": rope})
    assert len(target.notes) == 1
    assert target.notes[0].startswith(
        "the rotary embedding (dynamic) changes where a sequence grows past a length"
    )
