"""Which documents, anchors and positions a step trains."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_texts import random_cache

from ddtree.training.batches import make_batch, pick_documents
from ddtree.training.features import FeatureCache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    return random_cache(tmp_path_factory.mktemp("features"))


def test_a_pass_takes_every_document_once_in_an_order_of_its_own() -> None:
    passes = [
        [i for step in range(5) for i in pick_documents(number * 5 + step, 2, 3, 13, 7)] for number in (0, 1)
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(3, 13))
    assert passes[0] != passes[1]
    assert pick_documents(3, 2, 3, 13, 7) == passes[0][6:8]
    assert pick_documents(3, 2, 3, 13, 8) != passes[0][6:8]


def test_rows_are_the_documents_and_labels_stand_behind_their_anchors(cache: FeatureCache) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = make_batch(cache, [2, 5, 7], 8, 5, 4.0, generator)
    assert batch.token_ids.shape[1] % 32 == 0
    for row, document in enumerate((2, 5, 7)):
        length = cache.length(document)
        assert torch.equal(batch.token_ids[row, :length], cache.tokens(document))
        assert torch.equal(batch.features[row, :length], cache.features(document))
        assert batch.features[row, length:].abs().sum() == 0
        roots = batch.anchors[row]
        assert len(set(roots.tolist())) == 8
        assert roots.min() >= int(cache.starts[document]) - 1 and roots.max() <= length - 2
    width = batch.token_ids.shape[1]
    rows, columns = batch.before // width, batch.before % width
    assert torch.equal(rows, batch.anchor_rows // 8)
    assert torch.equal(columns, batch.anchors.flatten()[batch.anchor_rows] + batch.slots)
    lengths = torch.tensor([cache.length(document) for document in (2, 5, 7)])
    assert (columns + 1 < lengths[rows]).all()
    assert torch.equal(batch.slots, batch.slots.sort().values)


def test_a_positions_share_falls_as_the_paper_weighs_it(cache: FeatureCache) -> None:
    batch = make_batch(cache, [0, 1, 2, 3], 96, 7, 4.0, torch.Generator().manual_seed(1))
    counts = torch.bincount(batch.slots).tolist()
    assert counts == [math.ceil(int(384 * math.exp(-slot / 4)) / 32) * 32 for slot in range(7)]


def test_equal_generators_give_equal_batches(cache: FeatureCache) -> None:
    def made(seed: int) -> torch.Tensor:
        return make_batch(cache, [0, 1], 8, 5, 4.0, torch.Generator().manual_seed(seed)).before

    assert torch.equal(made(3), made(3))
    assert not torch.equal(made(3), made(4))
