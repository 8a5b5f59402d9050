"""Small randomly initialised models of many families, each as a Target and as an untouched twin."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ddtree import attention
from ddtree.loading import make_target
from ddtree.target import Target

VOCAB = 211
WINDOW = 16

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
NARROW = {**BASE, "head_dim": 16}
GPT = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", BASE),
    "qwen2": ("qwen2", BASE),
    "qwen3": ("qwen3", NARROW),
    "mistral, window left": ("mistral", {**BASE, "sliding_window": WINDOW}),
    "mistral, inside the window": ("mistral", BASE),
    "qwen2, some layers with a window": (
        "qwen2",
        {**BASE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "gemma2: soft caps, alternating windows": ("gemma2", {**NARROW, "sliding_window": WINDOW}),
    "gemma3: alternating windows, norms of queries and keys": (
        "gemma3_text",
        {**NARROW, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "qwen3_moe: experts": (
        "qwen3_moe",
        {**NARROW, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "gpt_oss: sinks, alternating windows, experts": (
        "gpt_oss",
        {**NARROW, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek_v3: keys and values differ in size": (
        "deepseek_v3",
        {
            **BASE,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt2: learned positions, no linear layers": ("gpt2", GPT),
    "cohere: scaled logits": ("cohere", BASE),
    "falcon: eager attention of its own": ("falcon", BASE),
}


class TinyTokenizer:
    """What a Target asks of a tokenizer that these models do not have."""

    eos_token_id = 2
    model_max_length = 256

    def get_vocab(self) -> dict[str, int]:
        return {f"<{token_id}>": token_id for token_id in range(VOCAB)}


def twins(
    kind: str, options: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Target, Any]:
    """A Target and a model of the same weights that nothing of ours has touched."""
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in reference.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * 0.3 if weight.ndim > 1 else 1 + noise * 0.1)
    return make_target(ours(kind, options, reference), TinyTokenizer(), kind), reference


def ours(kind: str, options: dict[str, Any], reference: Any) -> Any:
    """A model of the reference's weights whose attention is ours where its family lets one choose."""
    attention.register()
    config = AutoConfig.for_model(kind, **options)
    implementation = "eager" if kind == "falcon" else attention.ATTENTION
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).to(reference.dtype)
    model.load_state_dict(reference.state_dict())
    return model
