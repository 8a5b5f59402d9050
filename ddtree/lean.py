"""Decoder layers of the plain kind (llama, mistral, qwen2, qwen3 and the like) in a third of the operations.

A single-row pass of a small model is mostly the cost of starting operations. Here a layer runs on its merged
and repacked weights, turns queries and keys together, writes its rows into the cache and adds the residual
inside the product. A layer is replaced only where its values were compared with transformers' own forward on
a tree; the modules, their hooks and a user's own calls of the model stay transformers'.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddtree.attention import repeat_rows
from ddtree.kvcache import RowCache, RowLayer
from ddtree.merged import PartLinear
from ddtree.packed import PackedLinear
from ddtree.support import tree_pass

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_GATED = {"gate_proj", "up_proj", "down_proj"}

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-5}
"""Largest difference to the module's own output, relative to its largest entry: rounding in another order."""


class LeanLayer:
    """The forward of one decoder layer, for passes on our cache; other calls go to the module's own."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.own = layer.forward
        self.index: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.scale: float = attention.scaling
        self.projected: PackedLinear = attention.q_proj.stack.product
        widths: list[int] = attention.q_proj.stack.widths
        self.heads = widths[0] // self.head_dim
        self.key_heads = widths[1] // self.head_dim
        self.output: PackedLinear = attention.o_proj
        self.gate_up: PackedLinear = mlp.gate_proj.stack.product
        self.down: PackedLinear = mlp.down_proj
        self.first_norm = _norm(layer.input_layernorm)
        self.second_norm = _norm(layer.post_attention_layernorm)
        self.query_norm = _norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.key_norm = _norm(attention.k_norm) if hasattr(attention, "k_norm") else None

    def __call__(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """hidden_states [1, n, width], rotary cosines and sines [1, n, D] -> [1, n, width]."""
        if not isinstance(cache, RowCache) or position_embeddings is None:
            return self.own(  # type: ignore[no-any-return]
                hidden_states,
                attention_mask=attention_mask,
                cache=cache,
                position_embeddings=position_embeddings,
                **options,
            )
        rows: Any = cache.layers[self.index]
        attended = self._attend(
            _normed(hidden_states, self.first_norm), attention_mask, rows, position_embeddings
        )
        hidden = _add_product(attended, hidden_states, self.output)
        gate, up = self.gate_up(_normed(hidden, self.second_norm)).chunk(2, -1)
        return _add_product(F.silu(gate).mul_(up), hidden, self.down)

    def _attend(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        rows: RowLayer,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """[1, n, width] normed -> [1, n, heads * D] before the output projection."""
        n, heads, key_heads = x.shape[1], self.heads, self.key_heads
        projected = self.projected(x).view(n, heads + 2 * key_heads, self.head_dim).transpose(0, 1)
        turning = projected.narrow(0, 0, heads + key_heads)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = turning.split_with_sizes((heads, key_heads))
            turning = torch.cat((_normed(queries, self.query_norm), _normed(keys, self.key_norm)))
        turned = _rotate(turning, *angles)
        keys, values = rows.update(
            turned.narrow(0, heads, key_heads)[None],
            projected.narrow(0, heads + key_heads, key_heads)[None],
        )
        groups = heads // key_heads
        query = turned.narrow(0, 0, heads).reshape(1, key_heads, groups * n, self.head_dim)
        if mask is not None and groups > 1:
            mask = repeat_rows(mask, groups)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self.scale)
        return attended.view(heads, n, self.head_dim).transpose(0, 1).reshape(1, n, -1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [H, n, D] by [1, n, D] angles; the halves of D turn together."""
    half = x.shape[-1] // 2
    signed: torch.Tensor | None = sin.__dict__.get("signed")  # made once a pass: all layers get one tensor
    if signed is None:
        signed = sin.clone()
        signed.narrow(-1, 0, half).neg_()
        sin.__dict__["signed"] = signed
    return torch.addcmul(x * cos, x.roll(half, -1), signed)


def _norm(module: Any) -> tuple[torch.Tensor, float]:
    """Weight and epsilon of an RMSNorm."""
    epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return module.weight.detach(), float(epsilon)


def _normed(x: torch.Tensor, norm: tuple[torch.Tensor, float]) -> torch.Tensor:
    weight, epsilon = norm
    return F.rms_norm(x, weight.shape, weight, epsilon)


def _add_product(x: torch.Tensor, residual: torch.Tensor, product: PackedLinear) -> torch.Tensor:
    """residual + product(x), added inside the product."""
    added = torch.ops.mkldnn._linear_pointwise.binary(x, residual, product.packed, product.bias, "add")
    return added  # type: ignore[no-any-return]


def lean_layers(target: Any) -> int:
    """Gives the target's decoder layers the lean forward where they are of the plain kind and agree on a tree
    pass. Returns how many were given it."""
    layers = [module for module in target.model.modules() if _plain_kind(module)]
    if not layers:
        return 0
    calls: dict[int, tuple[Any, Any, torch.Tensor]] = {}

    def remember(module: nn.Module, arguments: Any, options: Any, output: Any) -> None:
        calls[id(module)] = (arguments, options, output)

    hooks = [layer.register_forward_hook(remember, with_kwargs=True) for layer in layers]
    with torch.inference_mode():
        tree_pass(target)
        for hook in hooks:
            hook.remove()
        return sum(_replace(layer, *calls[id(layer)]) for layer in layers if id(layer) in calls)


def _plain_kind(module: nn.Module) -> bool:
    """A layer of two norms, grouped attention and a gated unit, all of its products repacked."""
    children = dict(module.named_children())
    if set(children) != _PARTS:
        return False
    attention, mlp = dict(children["self_attn"].named_children()), dict(children["mlp"].named_children())
    names = set(attention) - {"q_norm", "k_norm", "rotary_emb"}
    if (
        names != _PROJECTIONS
        or set(mlp) - {"act_fn"} != _GATED
        or ("q_norm" in attention) != ("k_norm" in attention)
    ):
        return False
    parts = [attention[name] for name in ("q_proj", "k_proj", "v_proj")] + [mlp["gate_proj"], mlp["up_proj"]]
    products = [attention["o_proj"], mlp["down_proj"]]
    return all(isinstance(part, PartLinear) for part in parts) and all(
        isinstance(product, PackedLinear) for product in products
    )


def _replace(layer: Any, arguments: Any, options: Any, output: Any) -> bool:
    """Whether the lean forward gave the module's own output for the same call; then it is put in place."""
    try:
        lean = LeanLayer(layer)
        got = lean(*arguments, **options)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False
    if not isinstance(output, torch.Tensor) or got.shape != output.shape:
        return False
    difference = (got - output).abs().max().item()
    if not difference <= TOLERANCE[output.dtype] * output.abs().max().item():
        return False
    layer.forward = lean
    return True
