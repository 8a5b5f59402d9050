"""The drafter's pass over many anchors of several documents at once, with gradients.

An anchor is a token that plays the root: its block sees the features of the tokens before it, and itself.
Context keys and values are made once a document and shared by all of its anchors. The arithmetic is that of
`DFlashModel.forward`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ddtree.drafters.dflash import DFlashModel, rotate
from ddtree.drafters.dflash_slots import SlotHeads
from ddtree.training.norm import rms_norm


def anchor_hidden(
    model: DFlashModel,
    features: torch.Tensor,
    roots: torch.Tensor,
    mask: torch.Tensor,
    anchors: torch.Tensor,
) -> torch.Tensor:
    """Hidden states before the output norm.

    features [B, T, taps * width] of the documents' tokens; anchors int64 [B, A], indices of roots; roots
    [B, A, width], their embeddings; mask [width], the mask token's. Returns [B, A, S, width]: S drafted
    positions, or the root's state alone (S = 1) where heads make the positions of it.
    """
    config = model.config
    batch, count = anchors.shape
    context = rms_norm(model.hidden_norm, model.fc(features))
    slots = 1 if model.heads is not None else config.block_size
    hidden = roots[:, :, None]
    if slots > 1:
        hidden = torch.cat((hidden, mask.expand(batch, count, slots - 1, -1)), dim=2)
    if model.direct is not None:
        before = (anchors - 1).clamp(min=0)[..., None].expand(-1, -1, context.shape[-1])
        last = context.gather(1, before) * (anchors > 0)[..., None]
        root = rms_norm(model.direct.root_norm, roots)
        hidden = hidden + model.direct.proj(torch.cat((last, root), dim=-1))[:, :, None]
    hidden = hidden.reshape(batch, count * slots, -1)
    positions = (anchors[..., None] + torch.arange(slots, device=anchors.device)).flatten(1)
    of_block = _angles(model, positions, hidden.dtype)
    everywhere = torch.arange(features.shape[1], device=anchors.device)[None]
    of_context = _angles(model, everywhere, hidden.dtype)
    unseen = _unseen(anchors, features.shape[1], hidden.dtype)
    for layer in model.layers:
        hidden = _layer(layer, hidden, context, of_block, of_context, unseen)
    hidden = hidden.view(batch, count, slots, -1)
    return hidden if model.heads is not None else hidden[:, :, 1:]


def _angles(
    model: DFlashModel, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [B, 1, n, D] of positions [B, n]."""
    angles = positions[..., None].float() * model.frequencies.to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _unseen(anchors: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, A, T] to add to scores: 0 for the tokens before an anchor, the type's minimum for the others."""
    seen = torch.arange(length, device=anchors.device) < anchors[..., None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=anchors.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def _layer(
    layer: Any,
    hidden: torch.Tensor,
    context: torch.Tensor,
    of_block: tuple[torch.Tensor, torch.Tensor],
    of_context: tuple[torch.Tensor, torch.Tensor],
    unseen: torch.Tensor,
) -> torch.Tensor:
    """hidden [B, n, width], context [B, T, width] -> [B, n, width]."""
    attention = layer.self_attn

    def heads(name: str, x: torch.Tensor) -> torch.Tensor:
        """[B, n, width] -> [B, H, n, D]."""
        projected: torch.Tensor = attention[f"{name}_proj"](x)
        return projected.view(*x.shape[:2], -1, layer.head_dim).transpose(1, 2)

    def keys(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return rotate(rms_norm(attention["k_norm"], heads("k", x)), *angles)

    x = rms_norm(layer.input_layernorm, hidden)
    query = rotate(rms_norm(attention["q_norm"], heads("q", x)), *of_block)
    attended = _attend(
        query, keys(context, of_context), heads("v", context), keys(x, of_block), heads("v", x), unseen
    )
    hidden = hidden + attention["o_proj"](attended.transpose(1, 2).flatten(2))
    return hidden + _gated(layer.mlp, rms_norm(layer.post_attention_layernorm, hidden))


def _gated(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    return mlp["down_proj"](F.silu(mlp["gate_proj"](x)) * mlp["up_proj"](x))  # type: ignore[no-any-return]


def slot_rows(
    heads: SlotHeads, hidden: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """hidden [m, width], the roots'; rows, slots int64 [n], slots ascending -> [n, width]: row i is what slot
    slots[i] makes of hidden[rows[i]], before the output norm."""
    width = hidden.shape[1]
    weights = heads.proj.weight.view(-1, width, width)
    picked = hidden[rows]
    parts = torch.split(picked, torch.bincount(slots, minlength=len(weights)).tolist())
    moved = [F.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]
    hidden = picked + torch.cat(moved)
    return hidden + _gated(heads.mlp, rms_norm(heads.norm, hidden))


def _attend(
    query: torch.Tensor,
    context_keys: torch.Tensor,
    context_values: torch.Tensor,
    own_keys: torch.Tensor,
    own_values: torch.Tensor,
    unseen: torch.Tensor,
) -> torch.Tensor:
    """query [B, H, A * S, D], context [B, Hkv, T, D], own [B, Hkv, A * S, D], unseen [B, A, T] -> as query.
    A block sees its own S rows and no other block's: two products under one softmax."""
    batch, key_heads, length, dim = context_keys.shape
    count = unseen.shape[1]
    slots = query.shape[2] // count
    grouped = query.view(batch, key_heads, -1, count, slots, dim) * dim**-0.5
    rows = grouped.flatten(2, 4)
    of_context = (rows @ context_keys.transpose(2, 3)).view(*grouped.shape[:5], length)
    of_context = of_context + unseen[:, None, None, :, None]
    own_keys = own_keys.reshape(batch, key_heads, 1, count, slots, dim)
    own_values = own_values.reshape(batch, key_heads, 1, count, slots, dim)
    of_own = grouped @ own_keys.transpose(-1, -2) if slots > 1 else (grouped * own_keys).sum(-1, keepdim=True)
    weights = torch.softmax(torch.cat((of_context, of_own), dim=-1), dim=-1)
    on_context, on_own = torch.split(weights, [length, slots], dim=-1)
    attended = (on_context.reshape((*rows.shape[:3], length)) @ context_values).view(grouped.shape)
    attended = attended + (on_own @ own_values if slots > 1 else on_own * own_values)
    return attended.view(query.shape)
