"""Checkpoints on disk: what fits the target is loaded, what does not is refused with an example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import BASE, VOCAB, twins

from ddtree.drafters.checkpoint import check_tokenizer, fingerprint, load_dflash, target_token_ids
from ddtree.drafters.dflash import DFlashModel
from ddtree.drafters.dflash_config import parse_config
from ddtree.target import Target

CONFIG: dict[str, Any] = {
    "block_size": 6,
    "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 3]},
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 5000.0,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB,
}


@pytest.fixture(scope="module")
def target() -> Target:
    return twins("llama", BASE)[0]


def write(folder: Path, config: dict[str, Any] | None = None, **tensors: torch.Tensor) -> Path:
    config = config or CONFIG
    (folder / "config.json").write_text(json.dumps(config))
    weights = DFlashModel(parse_config(config), 96).state_dict()
    save_file(
        {**weights, **{name.replace("__", "."): value for name, value in tensors.items()}},
        folder / "m.safetensors",
    )
    return folder


def test_a_checkpoint_that_fits(tmp_path: Path, target: Target) -> None:
    drafter = load_dflash(write(tmp_path), target, "tiny")
    assert (drafter.name, drafter.kind, drafter.block_size) == ("tiny", "dflash", 6)
    assert (drafter.taps, drafter.max_context) == ((0, 3), 256)


def test_another_vocabulary_is_refused_with_example_ids(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path, {**CONFIG, "vocab_size": 300})
    with pytest.raises(ValueError, match="ids such as 211 and 299 mean nothing to the target"):
        load_dflash(folder, target, "tiny")


def test_the_table_stores_offsets() -> None:
    assert target_token_ids(torch.tensor([0, 2, 2, 5]), 9).tolist() == [0, 3, 4, 8]
    with pytest.raises(ValueError, match="d2t sends token 3 to 8; the target has 8 tokens"):
        target_token_ids(torch.tensor([0, 2, 2, 5]), 8)
    with pytest.raises(ValueError, match="several tokens to 1"):
        target_token_ids(torch.tensor([1, 0]), 8)


def test_a_vocabulary_of_its_own(tmp_path: Path, target: Target) -> None:
    table = torch.arange(100)  # the target's even ids
    folder = write(tmp_path, {**CONFIG, "vocab_size": 100}, d2t=table, lm_head__weight=torch.zeros(100, 64))
    drafter = load_dflash(folder, target, "tiny")
    assert drafter._target_ids is not None
    assert drafter._target_ids.tolist() == list(range(0, 200, 2))
    folder = write(tmp_path, {**CONFIG, "vocab_size": 100}, d2t=table, lm_head__weight=torch.zeros(99, 64))
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(99, 64\)"):
        load_dflash(folder, target, "tiny")


def test_a_table_without_a_head_takes_the_targets_rows(tmp_path: Path, target: Target) -> None:
    table = torch.arange(100) + 1  # the target's odd ids
    drafter = load_dflash(write(tmp_path, {**CONFIG, "vocab_size": VOCAB}, d2t=table), target, "tiny")
    states = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    expected = target.model.get_output_embeddings()(states)[:, 1:201:2]
    torch.testing.assert_close(drafter._head(states), expected, rtol=1e-5, atol=1e-5)


def test_a_drafter_of_another_target_is_refused_by_its_fingerprint(tmp_path: Path, target: Target) -> None:
    own = fingerprint(4, 64, VOCAB, target.tokenizer.get_vocab())
    nested = {**CONFIG["dflash_config"], "target_fingerprint": own}
    assert load_dflash(write(tmp_path, {**CONFIG, "dflash_config": nested}), target, "tiny").name == "tiny"
    nested["target_fingerprint"] = "0" * 16
    folder = write(tmp_path, {**CONFIG, "dflash_config": nested})
    with pytest.raises(ValueError, match=f"fingerprint 0{{16}} .*llama's is {own}: train one for it"):
        load_dflash(folder, target, "tiny")


def test_a_fingerprint_tells_shapes_and_vocabularies_apart() -> None:
    words = {"a": 0, "b": 1}
    seen = [
        fingerprint(4, 64, 2, words),
        fingerprint(5, 64, 2, words),
        fingerprint(4, 32, 2, words),
        fingerprint(4, 64, 3, words),
        fingerprint(4, 64, 2, {"a": 1, "b": 0}),
    ]
    assert len(set(seen)) == 5
    assert fingerprint(4, 64, 2, {"b": 1, "a": 0}) == seen[0]


def test_both_layouts_are_read(tmp_path: Path, target: Target) -> None:
    nested = {**CONFIG["dflash_config"], "direct_path": True, "slots": "heads", "slot_intermediate_size": 80}
    drafter = load_dflash(write(tmp_path, {**CONFIG, "dflash_config": nested}), target, "tiny")
    assert drafter.model.direct is not None and drafter.model.heads is not None
    assert drafter.block_size == 6
    with pytest.raises(ValueError, match=r"do not fit config\.json: .*direct"):
        folder = write(tmp_path, {**CONFIG, "dflash_config": nested})
        (folder / "config.json").write_text(json.dumps(CONFIG))
        load_dflash(folder, target, "tiny")


def test_tensors_that_do_not_fit_are_named(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path, None, norm__weight=torch.ones(5))
    with pytest.raises(ValueError, match=r"do not fit config\.json: .*norm\.weight"):
        load_dflash(folder, target, "tiny")
    folder = write(tmp_path, None, layers__7__input_layernorm__weight=torch.ones(64))
    with pytest.raises(ValueError, match=r"layers\.7\.input_layernorm\.weight"):
        load_dflash(folder, target, "tiny")
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no safetensors"):
        load_dflash(folder, target, "tiny")


def test_another_tokenizer_is_refused_with_examples(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    class Ours:
        @staticmethod
        def get_vocab() -> dict[str, int]:
            return {"a": 0, "b": 1, "c": 2}

    check_tokenizer(tmp_path, Ours())
    Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a")).save(
        str(tmp_path / "tokenizer.json")
    )
    check_tokenizer(tmp_path, Ours())
    Tokenizer(models.WordLevel({"a": 0, "c": 1, "d": 3}, unk_token="a")).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(
        ValueError, match='id 1 is "c" there and "b" in the target; id 3 is "d" there and null'
    ):
        check_tokenizer(tmp_path, Ours())
