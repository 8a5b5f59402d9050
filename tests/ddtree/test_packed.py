"""Repacked layers give the plain layers' values, or are not used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import BASE, FAMILIES, twins
from torch import nn

from ddtree import packed
from ddtree.packed import PackedLinear, can_pack, pack_linear, pack_model

CPU = torch.device("cpu")
SHAPES = [(192, 576), (576, 1536), (49152, 576), (7, 5)]


def layer(shape: tuple[int, int], dtype: torch.dtype, bias: bool = False) -> nn.Linear:
    torch.manual_seed(shape[0])
    return nn.Linear(shape[1], shape[0], bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_values(shape: tuple[int, int], bias: bool) -> None:
    plain = layer(shape, torch.float32, bias)
    repacked = pack_linear(plain)
    assert repacked is not None
    for rows in (1, 8, 17):
        x = torch.randn(rows, shape[1])
        torch.testing.assert_close(repacked(x), plain(x), rtol=1e-5, atol=2e-6 * shape[1] ** 0.5)


@pytest.mark.skipif(not can_pack(CPU, torch.bfloat16), reason="this CPU has no bfloat16 products")
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_bfloat16_values(shape: tuple[int, int]) -> None:
    plain = layer(shape, torch.bfloat16)
    repacked = pack_linear(plain)
    assert repacked is not None
    for rows in (1, 8, 17):
        x = torch.randn(rows, shape[1]).bfloat16()
        expected = F.linear(x.double(), plain.weight.double())
        assert (repacked(x) - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_in_float32_a_row_alone_equals_the_row_among_others() -> None:
    """It makes exact greedy tree decoding easier: plain products do not have it, nor do repacked ones of
    1,536 inputs, where a single row is summed in another order than eight."""
    repacked = pack_linear(layer((1536, 576), torch.float32))
    assert repacked is not None
    x = torch.randn(17, 576)
    together = repacked(x)
    for row in (0, 8, 16):
        assert torch.equal(repacked(x[row : row + 1])[0], together[row])


def test_leading_dimensions_are_kept() -> None:
    repacked = pack_linear(layer((7, 5), torch.float32))
    assert repacked is not None
    assert repacked(torch.zeros(2, 3, 5)).shape == (2, 3, 7)
    assert (repacked.in_features, repacked.out_features) == (5, 7)


def test_wrong_values_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: right(self, x) + 1e-3)
    assert pack_linear(layer((192, 576), torch.float32)) is None
    model = nn.Sequential(layer((192, 576), torch.float32))
    notes = pack_model(model)
    assert notes == ["1 layers not repacked (repacked values differed from the plain layer's): 0"]
    assert type(model[0]) is nn.Linear


def test_without_the_operation_layers_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> None:
        raise AttributeError("no such operation")

    monkeypatch.setattr(packed.torch.ops.mkldnn, "_reorder_linear_weight", absent, raising=False)
    assert pack_linear(layer((192, 576), torch.float32)) is None


def test_what_cannot_be_packed_is_named() -> None:
    class Quantised(nn.Linear):
        pass

    layers = {"float16": layer((8, 8), torch.float16), "quantised": Quantised(8, 8), "plain": nn.Linear(8, 8)}
    model = nn.ModuleDict(layers).requires_grad_(False)
    assert pack_model(model) == [
        "1 layers not repacked (no repacked products for float16 on cpu): float16",
        "1 layers not repacked (a Quantised): quantised",
    ]
    assert [type(module).__name__ for module in model.values()] == ["Linear", "Quantised", "PackedLinear"]


def test_a_tied_embedding_stays_for_the_lookup() -> None:
    target, reference = twins("cohere", {**BASE, "tie_word_embeddings": True})
    assert isinstance(target.model.lm_head, PackedLinear)
    ids = torch.tensor([3, 5])
    embedded = target.model.get_input_embeddings()(ids)
    assert torch.equal(embedded, reference.get_input_embeddings()(ids))


def test_every_linear_layer_of_a_target_is_packed_and_experts_are_named() -> None:
    target, _ = twins("cohere", BASE)
    assert not [name for name, module in target.model.named_modules() if isinstance(module, nn.Linear)]
    mixture, _ = twins(*FAMILIES["gpt_oss: sinks, alternating windows, experts"])
    assert len(mixture.notes) == 1
    assert "experts are not linear layers" in mixture.notes[0]
    assert "model.layers.0.mlp.experts" in mixture.notes[0]
