"""A drafter at the beginning of its training: configuration, first weights, what its loss needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ddtree.drafters.checkpoint import fingerprint
from ddtree.drafters.dflash import DFlashModel
from ddtree.drafters.dflash_config import DFlashConfig, parse_config
from ddtree.training.features import FeatureCache
from ddtree.training.learner import Learner
from ddtree.training.settings import TrainSettings

_SPREAD = 0.02
"""Standard deviation of the first weights."""


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Five layers from the second to the last, evenly, or all of a smaller model. The last one's output is
    what the target's own next token is read from; the loss needs it too."""
    if num_layers < 3:
        return tuple(range(num_layers))
    count = min(5, num_layers - 1)
    return tuple(1 + round((num_layers - 2) * i / (count - 1)) for i in range(count))


def drafter_config(
    settings: TrainSettings, model: Any, tokenizer: Any, taps: tuple[int, ...], counts: torch.Tensor
) -> dict[str, Any]:
    """config.json of the drafter. model: the target as transformers loads it; counts [V]: of its tokens in
    the texts; the mask is the first that they do not hold."""
    text = model.config.get_text_config()
    rope: Mapping[str, Any] = getattr(text, "rope_parameters", None) or {}
    heads = int(text.num_attention_heads)
    nested: dict[str, Any] = {
        "mask_token_id": int(counts.argmin()),
        "target_layer_ids": list(taps),
        "target_fingerprint": fingerprint(
            text.num_hidden_layers, text.hidden_size, len(counts), tokenizer.get_vocab()
        ),
    }
    if settings.direct_path:
        nested["direct_path"] = True
    if settings.slots == "heads":
        nested |= {"slots": "heads", "slot_intermediate_size": settings.slot_intermediate_size}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": settings.block_size,
        "dflash_config": nested,
        "num_target_layers": text.num_hidden_layers,
        "num_hidden_layers": settings.layers,
        "hidden_size": text.hidden_size,
        "intermediate_size": getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": getattr(text, "rms_norm_eps", 1e-6),
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "vocab_size": len(counts),
        "max_position_embeddings": text.max_position_embeddings,
        "layer_types": ["full_attention"] * settings.layers,
        "dtype": "bfloat16",
    }


def token_counts(cache: FeatureCache, first: int, vocab_size: int) -> torch.Tensor:
    """int64 [V]: how often each token stands in the answers of the documents from `first` on."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for document in range(first, len(cache)):
        answer = cache.tokens(document)[int(cache.starts[document]) :]
        counts += torch.bincount(answer, minlength=vocab_size)
    return counts


def feature_scales(cache: FeatureCache, first: int, sample: int = 64) -> torch.Tensor:
    """float32 [taps * H]: what brings each feature to a root mean square of 1, over a sample of documents.
    The layers' outputs differ by orders of magnitude, and a few features tower over the rest."""
    documents = range(first, min(first + sample, len(cache)))
    rows = torch.cat([cache.features(document)[::7].float() for document in documents])
    return rows.square().mean(0).sqrt_().clamp_(min=1e-3).reciprocal_()


@torch.no_grad()
def first_weights(config: DFlashConfig, intermediate_size: int, final_norm: Any, seed: int) -> DFlashModel:
    """A drafter that is near the last context token's state at first: `fc` passes the last tap on, the direct
    path half of that, and the output norm is the target's."""
    model = DFlashModel(config, intermediate_size)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=_SPREAD, generator=generator)
    same = torch.eye(config.hidden_size)
    model.fc.weight[:, -config.hidden_size :] += same
    if model.direct is not None:
        model.direct.proj.weight[:, : config.hidden_size] += same / 2
    scale: torch.Tensor | None = getattr(final_norm, "weight", None)
    if scale is not None and scale.shape == model.norm.weight.shape:
        model.norm.weight.copy_(scale.float())
    return model


def make_learner(
    settings: TrainSettings, cache: FeatureCache, model: Any, config: dict[str, Any], counts: torch.Tensor
) -> Learner:
    """model: the target as transformers loads it; its embedding and head are shared, never changed."""
    decoder = model.get_decoder()
    drafter = first_weights(
        parse_config(config), config["intermediate_size"], getattr(decoder, "norm", None), settings.seed
    )
    embedding = model.get_input_embeddings().weight.detach()
    head = model.get_output_embeddings().weight.detach()
    frequent = counts.topk(min(settings.frequent, len(counts))).indices
    scales = feature_scales(cache, settings.held_out)
    return Learner(
        drafter.to(head.device),
        embedding,
        head,
        scales.to(head.device, head.dtype),
        frequent,
        vocabulary=settings.vocabulary,
        soft=settings.soft,
    )
