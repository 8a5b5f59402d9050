"""The lean forward is used where it gives the layer's own values, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import BASE, FAMILIES, TinyTokenizer, ours, twins
from transformers import DynamicCache

from ddtree import lean
from ddtree.lean import LeanLayer, _rotate
from ddtree.loading import make_target
from ddtree.target import Target

PLAIN = ["llama", "qwen2", "qwen3", "mistral, window left"]


def leaned(target: Target) -> list[LeanLayer]:
    forwards = [module.__dict__.get("forward") for module in target.model.modules()]
    return [forward for forward in forwards if isinstance(forward, LeanLayer)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", PLAIN)
def test_plain_families_run_lean(family: str, dtype: torch.dtype) -> None:
    target, _ = twins(*FAMILIES[family], dtype=dtype)
    # among random weights a layer may round apart in bfloat16, and then keeps its own forward
    assert len(leaned(target)) >= (4 if dtype is torch.float32 else 2)


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.startswith(("gemma2", "gpt", "cohere"))]
)
def test_others_keep_their_own_forward(family: str) -> None:
    target, _ = twins(*FAMILIES[family])
    assert leaned(target) == []


def test_a_layer_that_turns_no_keys_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers without a rotary embedding look the same from outside: the values tell."""
    from transformers.models.llama import modeling_llama

    _, reference = twins("llama", BASE)
    right = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, **options: (q, k))
    target = make_target(ours("llama", BASE, reference), TinyTokenizer(), "llama")
    assert leaned(target) == []
    assert right is not modeling_llama.apply_rotary_pos_emb


def test_a_lean_forward_that_errs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _, reference = twins("llama", BASE)
    right = lean._add_product

    def wrong(x: torch.Tensor, residual: torch.Tensor, product: Any) -> torch.Tensor:
        return right(x, residual, product) * 1.0001

    monkeypatch.setattr(lean, "_add_product", wrong)
    assert leaned(make_target(ours("llama", BASE, reference), TinyTokenizer(), "llama")) == []


def test_other_caches_and_none_take_the_modules_own_forward() -> None:
    target, reference = twins("llama", BASE)
    ids = torch.tensor([[3, 5, 8, 13]])
    with torch.inference_mode():
        expected = reference(ids).logits
        torch.testing.assert_close(target.model(ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4)
        cache = DynamicCache()
        torch.testing.assert_close(target.model(ids, cache=cache).logits, expected, rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == 4


def test_rotation() -> None:
    """Pairs (i, i + D/2) turn by their angle."""
    x = torch.randn(3, 5, 8)
    angles = torch.rand(1, 5, 4) * 6
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    for _ in range(2):  # the second time with the signs made before
        torch.testing.assert_close(_rotate(x, cos, sin), torch.cat((turned.real, turned.imag), -1))
