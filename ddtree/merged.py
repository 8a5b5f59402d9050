"""Projections of one input as one product: query, key and value, gate and up.

A decoder layer calls them one after the other with the same tensor. Here the first call computes all of
them on stacked weights and the others take their part, so that a family's own forward stays untouched and
its values stay the same; a single-row pass is mostly the cost of starting products.
"""

from __future__ import annotations

import torch
from torch import nn

from ddtree.packed import PackedLinear, can_pack, pack_linear

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Stack:
    """The product of stacked weights, and what of it has not been taken yet."""

    def __init__(self, product: PackedLinear, widths: list[int]) -> None:
        self.product = product
        self.widths = widths
        self.input: torch.Tensor | None = None
        self.outputs: list[torch.Tensor | None] = []

    def take(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Part `index` of the product with `x`. Parts are kept as long as the calls give the same tensor."""
        held = self.outputs[index] if self.input is x else None
        if held is None:
            self.input = x
            self.outputs = list(self.product(x).split_with_sizes(self.widths, -1))
            held = self.outputs[index]
        assert held is not None
        self.outputs[index] = None
        if not any(output is not None for output in self.outputs):
            self.input = None
        return held


class PartLinear(nn.Module):
    """One of the projections of a stack."""

    def __init__(self, stack: _Stack, index: int) -> None:
        super().__init__()
        self.stack = stack
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack.take(x, self.index)


def merge_projections(model: nn.Module) -> None:
    """Replaces projections of one input by parts of one repacked product, in place, where all of them are
    plain linear layers that can be repacked. Others are left alone."""
    for module in list(model.modules()):
        children = dict(module.named_children())
        for names in _TOGETHER:
            layers = [children.get(name) for name in names]
            stack = _stack([layer for layer in layers if type(layer) is nn.Linear])
            if stack is None or len(stack.widths) < len(names):
                continue
            for index, name in enumerate(names):
                setattr(module, name, PartLinear(stack, index))


def _stack(layers: list[nn.Linear]) -> _Stack | None:
    """None where the layers cannot be one repacked product."""
    if (
        len(layers) < 2
        or len({(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}) > 1
    ):
        return None
    first = layers[0]
    if not all(type(layer.weight) is nn.Parameter for layer in layers):
        return None
    if not can_pack(first.weight.device, first.weight.dtype):
        return None
    widths = [layer.out_features for layer in layers]
    whole = nn.Linear(first.in_features, sum(widths), bias=first.bias is not None, device="meta")
    whole.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    if first.bias is not None:
        whole.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), requires_grad=False)
    product = pack_linear(whole)
    return None if product is None else _Stack(product, widths)
