"""Tree attention for transformers' models: one attention function and one mask function, registered under
the name `ddtree` through transformers' attention interface.

Every layer of a pass gets the additive mask that `tree_mask` makes once. Keys and values of grouped-query
models are read as they lie in the cache, never repeated per query head: the query heads that share a key
head become rows of one longer query.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

ATTENTION = "ddtree"


def tree_mask(
    visibility: torch.Tensor,
    length: int,
    dtype: torch.dtype,
    positions: torch.Tensor | None = None,
    window: int = 0,
) -> torch.Tensor:
    """The additive mask of a pass: row i sees the `length` committed tokens and what `visibility` allows.

    visibility: bool [n, n], `visibility[i, j]`: row i sees row j. With `window` > 0, a row at position p sees
    positions p - window + 1 .. p only; committed token j stands at position j, row i at `positions[i]`.
    Returns [1, 1, n, length + n] of `dtype`: 0 where seen, the type's minimum elsewhere. The minimum and not
    -inf: a block of keys that is masked as a whole must not make a NaN.
    """
    n = visibility.shape[0]
    seen = torch.ones(n, length + n, dtype=torch.bool, device=visibility.device)
    seen[:, length:] = visibility
    if window > 0:
        assert positions is not None
        of_keys = torch.cat((torch.arange(length, device=positions.device), positions))
        seen &= of_keys[None, :] > positions[:, None] - window
    mask = torch.zeros(n, length + n, dtype=dtype, device=visibility.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def static_tree_mask(
    visibility: torch.Tensor,
    length: torch.Tensor,
    capacity: int,
    dtype: torch.dtype,
    positions: torch.Tensor,
    window: int = 0,
) -> torch.Tensor:
    """`tree_mask` over a whole cache of `capacity` rows, of which the first `length` are committed and the n
    behind them the pass's: length int64 [1] is known on the device alone. Returns [1, 1, n, capacity]."""
    n = visibility.shape[0]
    of_keys = torch.arange(capacity, device=visibility.device)
    behind = of_keys - length  # row of the pass that stands there
    row = behind.clamp(0, n - 1)
    seen = (behind < 0) | (visibility.index_select(1, row) & (behind < n))
    if window > 0:
        of_keys = torch.where(behind < 0, of_keys, positions.index_select(0, row))
        seen &= of_keys[None, :] > positions[:, None] - window
    mask = torch.zeros(n, capacity, dtype=dtype, device=visibility.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [B, H, n, D], key [B, Hkv, T, D], value [B, Hkv, T, Dv] ->
    [B, n, H, Dv]. `softcap` and `s_aux` (attention sinks) are the families' own; both leave torch's fused
    kernel for plain products."""
    batch, heads, n, head_dim = query.shape
    groups = heads // key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    if position_bias is not None:
        raise NotImplementedError("attention with a learned position bias")
    # [B, Hkv, groups * n, D]: query head h reads key head h // groups
    grouped = query.reshape(batch, key.shape[1], groups * n, head_dim) if groups > 1 else query
    if attention_mask is not None and groups > 1:
        attention_mask = repeat_rows(attention_mask, groups)
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scale)
    else:
        output = _plain_attention(grouped, key, value, attention_mask, scale, softcap, s_aux, n)
    return output.view(batch, heads, n, value.shape[-1]).transpose(1, 2), None


def _plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    n: int,
) -> torch.Tensor:
    """query [B, Hkv, groups * n, D]; sinks [H]: a logit per query head that takes mass and gives no value."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    else:
        # a sink per query head; rows of one head stand together
        of_rows = sinks.to(scores.dtype).repeat_interleave(n).view(1, key.shape[1], -1, 1)
        weights = torch.softmax(torch.cat((scores, of_rows), dim=-1), dim=-1, dtype=torch.float32)[..., :-1]
    return torch.matmul(weights.to(value.dtype), value)


def repeat_rows(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """[B, 1, n, T] -> [B, 1, groups * n, T]. Made once a pass: all layers get one mask, which keeps it."""
    made: dict[int, torch.Tensor] = mask.__dict__.setdefault("repeated_rows", {})
    if groups not in made:
        made[groups] = mask.repeat(1, 1, groups, 1)
    return made[groups]


def _plain_mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    local_size: int = 0,
    **options: Any,
) -> torch.Tensor | None:
    """transformers' mask function, for calls that bring no 4D mask: one token that sees all keys needs none;
    other calls (a user's own, of the model) get transformers' eager mask, which is additive like ours."""
    if q_length == 1 and attention_mask is None and not 0 < local_size < kv_length:
        return None
    from transformers.masking_utils import eager_mask

    options["attention_mask"] = attention_mask
    return eager_mask(q_length=q_length, kv_length=kv_length, **options)


def register() -> None:
    """Makes `attn_implementation="ddtree"` known to transformers. May be called again."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION, tree_attention)
    AttentionMaskInterface.register(ATTENTION, _plain_mask)
