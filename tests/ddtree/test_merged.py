"""Merged projections give what each layer gives alone, in whatever order they are called."""

from __future__ import annotations

import torch
from tiny_models import BASE, twins
from torch import nn

from ddtree.merged import PartLinear, merge_projections


class Block(nn.Module):
    def __init__(self, key_inputs: int = 64, bias: bool = False) -> None:
        super().__init__()
        self.q_proj = nn.Linear(64, 64, bias=bias)
        self.k_proj = nn.Linear(key_inputs, 16, bias=bias)
        self.v_proj = nn.Linear(64, 16, bias=bias)


def pair(**options: int | bool) -> tuple[Block, Block]:
    torch.manual_seed(0)
    plain = Block(**options).requires_grad_(False)  # type: ignore[arg-type]
    merged = Block(**options).requires_grad_(False)  # type: ignore[arg-type]
    merged.load_state_dict(plain.state_dict())
    merge_projections(merged)
    return plain, merged


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_the_parts_are_the_layers() -> None:
    for bias in (False, True):
        plain, merged = pair(bias=bias)
        assert isinstance(merged.v_proj, PartLinear)
        for x in (torch.randn(1, 1, 64), torch.randn(1, 9, 64)):
            for name in ("q_proj", "k_proj", "v_proj"):
                same(getattr(merged, name)(x), getattr(plain, name)(x))


def test_any_order_any_input() -> None:
    plain, merged = pair()
    x, y = torch.randn(3, 64), torch.randn(3, 64)
    for name, given in [
        ("v_proj", x),
        ("q_proj", y),
        ("k_proj", x),
        ("k_proj", x),
        ("q_proj", x),
        ("v_proj", y),
    ]:
        same(getattr(merged, name)(given), getattr(plain, name)(given))


def test_a_tensor_that_changed_in_place_after_its_parts_were_taken_is_computed_anew() -> None:
    plain, merged = pair()
    x = torch.randn(3, 64)
    for _ in range(2):
        for name in ("q_proj", "k_proj", "v_proj"):
            same(getattr(merged, name)(x), getattr(plain, name)(x))
        x.add_(1)


def test_layers_of_different_inputs_stay_apart() -> None:
    _, merged = pair(key_inputs=32)
    assert [type(layer) for layer in merged.children()] == [nn.Linear] * 3


def test_a_target_has_its_projections_merged() -> None:
    target, _ = twins("cohere", BASE)
    parts = [name for name, module in target.model.named_modules() if isinstance(module, PartLinear)]
    assert len(parts) == 5 * 4
    assert "model.layers.0.mlp.up_proj" in parts
