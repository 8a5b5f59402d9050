"""The batched pass with gradients against the drafter's own, anchor by anchor."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_drafters import CONFIG, random_model

from ddtree.drafters.dflash import DFlashModel, DFlashState
from ddtree.drafters.dflash_slots import SlotHeads
from ddtree.training.forward import anchor_hidden, slot_rows

VARIANTS = {
    "z-lab": {},
    "direct path": {"direct_path": True},
    "heads": {"slots": "heads", "slot_intermediate_size": 80},
    "direct path, heads": {"direct_path": True, "slots": "heads", "slot_intermediate_size": 80},
}


def state_of(model: DFlashModel, capacity: int) -> DFlashState:
    config = model.config
    rows = torch.zeros(config.num_layers, config.num_key_heads, capacity, config.head_dim)
    return DFlashState(list(rows), list(rows.clone()), torch.zeros(config.hidden_size))


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_anchor_gives_what_drafting_there_gives(variant: str) -> None:
    model = random_model(dataclasses.replace(CONFIG, **VARIANTS[variant]))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, 12, 192, generator=generator)
    embeddings = torch.randn(2, 12, 64, generator=generator)
    mask = torch.randn(64, generator=generator)
    anchors = torch.tensor([[0, 3, 7], [2, 9, 11]])
    roots = embeddings.gather(1, anchors[..., None].expand(-1, -1, 64))
    made = anchor_hidden(model, features, roots, mask, anchors)
    for document in range(2):
        for place, root in enumerate(anchors[document].tolist()):
            state = state_of(model, 40)
            if root:
                model.extend(state, features[document, :root])
            block = torch.cat((roots[document, place][None], mask.expand(5, 64)))
            rows = made[document, place]
            if model.heads is not None:
                rows = model.heads(rows[0], 5)
            torch.testing.assert_close(model.norm(rows), model(state, block), rtol=1e-4, atol=1e-4)


def test_a_document_is_not_touched_by_its_neighbours_or_by_what_follows() -> None:
    model = random_model(dataclasses.replace(CONFIG, direct_path=True))
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, 12, 192, generator=generator)
    roots, mask = torch.randn(2, 1, 64, generator=generator), torch.zeros(64)
    anchors = torch.tensor([[5], [7]])
    made = anchor_hidden(model, features, roots, mask, anchors)
    features[1] = 9.0
    features[0, 5:] = -9.0
    again = anchor_hidden(model, features, roots, mask, anchors)
    assert torch.equal(made[0], again[0])
    assert not torch.allclose(made[1], again[1])


def test_gradients_reach_every_weight() -> None:
    model = random_model(dataclasses.replace(CONFIG, direct_path=True)).requires_grad_(True)
    features, roots = torch.randn(1, 12, 192), torch.randn(1, 2, 64)
    hidden = anchor_hidden(model, features, roots, torch.zeros(64), torch.tensor([[4, 9]]))
    model.norm(hidden).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_pairs_are_what_each_slot_makes_of_its_row() -> None:
    heads = SlotHeads(4, 16, 24, 1e-5)
    hidden = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    rows, slots = torch.tensor([2, 0, 1, 1, 0]), torch.tensor([0, 0, 1, 3, 3])
    made = slot_rows(heads, hidden, rows, slots)
    for row, slot, got in zip(rows, slots, made, strict=True):
        torch.testing.assert_close(got, heads(hidden[row], 4)[slot])
