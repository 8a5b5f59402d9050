"""Linear layers on weights repacked for oneDNN: half the time on a CPU, the same results.

The repacked products are private operations of torch (`torch.ops.mkldnn._linear_pointwise`): they are used
only where they exist and only after their values were compared with `F.linear`; elsewhere layers stay as
they are. A packed layer has no autograd and its weight cannot be indexed: inference only.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

_BATCH_HINT = 16
"""Rows oneDNN is told to expect: 16 is the fastest in float32 over 1 to 64 rows, bfloat16 does not care."""

_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Largest difference to F.linear, relative to the largest output, that a repacked layer may show."""


class PackedLinear(nn.Module):
    """`nn.Linear` for inference with its weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out, in] float32 or bfloat16 on the CPU; bias: [out]. Raises RuntimeError where torch has
        no repacked products for it."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _BATCH_HINT)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch has repacked products for the CPU and dtype at all."""
    if device.type != "cpu" or dtype not in _TOLERANCE or not torch._C._has_mkldnn:
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(
        torch.ops.mkldnn, "_reorder_linear_weight"
    )


def pack_linear(linear: nn.Linear) -> PackedLinear | None:
    """The packed form of a layer, or None where its values are not those of F.linear."""
    weight, bias = linear.weight, linear.bias
    try:
        packed = PackedLinear(weight, bias)
        return packed if _agrees(packed, weight, bias) else None
    except (RuntimeError, AttributeError, TypeError):
        return None


def _agrees(packed: PackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Compares one row and five with F.linear, on at most 1,024 outputs spread over all of them."""
    generator = torch.Generator().manual_seed(packed.in_features)
    x = torch.randn(5, packed.in_features, generator=generator).to(weight.dtype)
    picked = torch.linspace(0, packed.out_features - 1, min(packed.out_features, 1024)).long()
    expected = F.linear(x, weight[picked], None if bias is None else bias[picked]).float()
    tolerance = _TOLERANCE[weight.dtype] * max(expected.abs().max().item(), 1e-3)
    for rows in (1, 5):
        got = packed(x[None, :rows])[0, :, picked].float()
        difference = (got - expected[:rows]).abs().max().item()
        if not (math.isfinite(difference) and difference <= tolerance):
            return False
    return True


def pack_model(model: nn.Module) -> list[str]:
    """Replaces every nn.Linear of `model` by its packed form, in place. Returns notes on what stayed plain.

    A weight that an embedding shares stays unpacked there, for the lookup. Subclasses of nn.Linear
    (quantised layers) and DTensor weights are left alone; a mixture's experts are no nn.Linear.
    """
    kept: dict[str, list[str]] = {}
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear):
            if name.endswith(".experts") and any(True for _ in module.parameters(recurse=False)):
                kept.setdefault("a mixture's experts are not linear layers", []).append(name)
            continue
        reason = _why_not(module)
        packed = None if reason else pack_linear(module)
        if packed is not None:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], packed)
        else:
            kept.setdefault(reason or "repacked values differed from the plain layer's", []).append(name)
    return [
        f"{len(names)} layers not repacked ({reason}): {names[0]}{', ...' if len(names) > 1 else ''}"
        for reason, names in kept.items()
    ]


def _why_not(linear: nn.Linear) -> str | None:
    if type(linear) is not nn.Linear:
        return f"a {type(linear).__name__}"
    if type(linear.weight) is not nn.Parameter:
        return f"its weight is a {type(linear.weight).__name__}"
    if not can_pack(linear.weight.device, linear.weight.dtype):
        return f"no repacked products for {linear.weight.dtype} on {linear.weight.device.type}".replace(
            "torch.", ""
        )
    return None
