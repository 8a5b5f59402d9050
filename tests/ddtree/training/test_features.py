"""The features cache: what is stored where, in batches of any size, from where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import BASE, twins
from tiny_texts import random_documents

from ddtree.training import features
from ddtree.training.features import FeatureCache, create, fill

TAPS = (0, 2, 3)


@pytest.fixture(scope="module")
def model() -> Any:
    return twins("llama", BASE)[1]


def quiet(what: str, share: float | None) -> None:
    del what, share


@torch.inference_mode()
def alone(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    states = model(token_ids[None], output_hidden_states=True).hidden_states
    return torch.cat([states[tap + 1][0] for tap in TAPS], dim=-1)


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_rows_are_the_models_hidden_states_whatever_shares_the_batch(
    model: Any, tmp_path: Path, batch_tokens: int
) -> None:
    create(tmp_path, random_documents(9, 211), TAPS, 64)
    cache = FeatureCache(tmp_path)
    assert fill(cache, model, batch_tokens, quiet, lambda: False)
    assert cache.done == len(cache) == 9
    for document in range(9):
        expected = alone(model, cache.tokens(document))
        torch.testing.assert_close(cache.features(document).float(), expected, rtol=1e-2, atol=1e-2)


def test_a_stopped_stage_goes_on_behind_what_is_complete(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_SORTED", 3)
    create(tmp_path, random_documents(9, 211), TAPS, 64)
    asked = iter(range(100))
    assert not fill(FeatureCache(tmp_path), model, 1, quiet, lambda: next(asked) == 7)
    cache = FeatureCache(tmp_path)
    assert cache.done == 6
    assert cache.features(8).abs().sum() == 0 or cache.features(7).abs().sum() == 0
    kept = cache.features(2).clone()
    cache.features(0).zero_()  # what is complete is not made again
    assert fill(cache, model, 100, quiet, lambda: False)
    assert cache.done == 9 and cache.features(0).abs().sum() == 0
    assert torch.equal(cache.features(2), kept)
    torch.testing.assert_close(cache.features(8).float(), alone(model, cache.tokens(8)), rtol=1e-2, atol=1e-2)


def test_documents_are_kept_as_they_came(tmp_path: Path) -> None:
    documents = random_documents(5, 211)
    create(tmp_path, documents, TAPS, 64)
    cache = FeatureCache(tmp_path)
    assert (cache.taps, cache.hidden_size, cache.done) == (TAPS, 64, 0)
    for number, document in enumerate(documents):
        assert cache.tokens(number).tolist() == document.token_ids
        assert int(cache.starts[number]) == document.start
        assert float(cache.temperatures[number]) == pytest.approx(document.temperature)


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no documents\.npz; run the features stage first"):
        FeatureCache(tmp_path)
