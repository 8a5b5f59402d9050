"""What a drafter may have beyond the z-lab layout, in drafting."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_drafters import CONFIG, random_model
from tiny_models import BASE, VOCAB, twins

from ddtree.drafters.base import Context
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.target import Target

HEADS = dataclasses.replace(CONFIG, direct_path=True, slots="heads", slot_intermediate_size=80)


@pytest.fixture(scope="module")
def target() -> Target:
    return twins("llama", BASE)[0]


@pytest.fixture(scope="module")
def drafter(target: Target) -> DFlashDrafter:
    return DFlashDrafter("heads", HEADS, random_model(HEADS), target)


def context(target: Target, count: int) -> Context:
    ids = torch.randint(5, VOCAB, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = target.new_cache(count + 8, CONFIG.target_layer_ids)
    list(target.prefill(cache, ids[:-1]))
    return Context(ids, cache.features)


def test_a_shorter_block_is_the_beginning_of_a_longer_one(drafter: DFlashDrafter, target: Target) -> None:
    """Heads do not see each other: the first positions stay what they are."""
    given = context(target, 9)
    whole = drafter.logits(drafter.new_state(20), given, 6)
    part = drafter.logits(drafter.new_state(20), given, 3)
    assert (whole.shape, part.shape) == ((5, VOCAB), (2, VOCAB))
    torch.testing.assert_close(part, whole[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config", [HEADS, dataclasses.replace(CONFIG, direct_path=True)], ids=["heads", "masks"]
)
def test_the_direct_path_reads_the_last_context_token_and_the_root(target: Target, config: object) -> None:
    """Layers and heads silenced, what is left of a slot is its embedding plus the direct path."""
    model = random_model(config)  # type: ignore[arg-type]
    for layer in model.layers:
        layer.self_attn["o_proj"].weight.zero_()
        layer.mlp["down_proj"].weight.zero_()
    if model.heads is not None:
        model.heads.proj.weight.zero_()
        model.heads.mlp["down_proj"].weight.zero_()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    drafter = DFlashDrafter("direct", config, model, target)  # type: ignore[arg-type]
    given = context(target, 9)
    assert given.features is not None
    made = drafter.logits(drafter.new_state(20), given, 3)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (64,), weights[f"{name}.weight"], 1e-5)

    embedding = target.model.get_input_embeddings().weight
    root = embedding[given.token_ids[-1]]
    last = norm(given.features[7] @ weights["fc.weight"].T, "hidden_norm")
    added = torch.cat((last, norm(root, "direct.root_norm"))) @ weights["direct.proj.weight"].T
    start = root if model.heads is not None else embedding[4]
    expected = target.model.get_output_embeddings()(norm(start + added, "norm")[None])
    torch.testing.assert_close(made, expected.expand(2, -1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shorter", [1, 2, 8])
def test_a_state_ahead_of_the_sequence_goes_back(
    drafter: DFlashDrafter, target: Target, shorter: int
) -> None:
    """The direct path's last context token goes back too, to none where the root is the first token."""
    given = context(target, 15)
    state, fresh = drafter.new_state(20), drafter.new_state(20)
    drafter.logits(state, given, 6)
    back = Context(given.token_ids[:shorter], given.features)
    torch.testing.assert_close(
        drafter.logits(state, back, 6), drafter.logits(fresh, back, 6), rtol=1e-4, atol=1e-4
    )
