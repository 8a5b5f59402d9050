"""Rows move together: keys, values, every layer and the features take the same list."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DummyLayer, DynamicCache, StaticCache
from transformers.models.llama.configuration_llama import LlamaConfig

from ddtree.kvcache import LayerShape, TargetCache

SHAPES = [LayerShape(2, 4, 4), LayerShape(1, 6, 3), None, LayerShape(2, 4, 4)]
CPU = torch.device("cpu")


def cache_with(committed: int, pending: int) -> TargetCache:
    """Row r of a layer holds r + 100 * layer in its keys, the negative in its values, r in its features."""
    cache = TargetCache(
        SHAPES, committed + pending + 3, (0, 2), hidden_size=5, dtype=torch.float32, device=CPU
    )
    for start, count in ((0, committed), (committed, pending)):
        for index, shape in enumerate(SHAPES):
            if shape is None:
                continue
            rows = torch.arange(start, start + count, dtype=torch.float32) + 100 * index
            keys = rows[None, None, :, None].expand(1, shape.heads, count, shape.key_dim)
            values = -rows[None, None, :, None].expand(1, shape.heads, count, shape.value_dim)
            cache.layers.update(keys, values, index)
        assert cache.features is not None
        cache.features[start : start + count] = torch.arange(start, start + count).float()[:, None]
        cache.pending = count
        if start == 0:
            cache.keep(range(count))
    return cache


def rows_of(cache: TargetCache) -> list[list[list[float]]]:
    """Keys, values of every layer and the features, as the numbers in their committed rows."""
    found = []
    for index, shape in enumerate(SHAPES):
        if shape is None:
            continue
        layer = cache.layers.layers[index]
        for tensor in (layer.keys, layer.values):
            kept = tensor[0, :, : cache.length]
            assert (kept == kept[:1, :, :1]).all()  # a row is one number in all heads and columns
            found.append((kept[0, :, 0].abs() - 100 * index).tolist())
    assert cache.features is not None
    found.append(cache.features[: cache.length, 0].tolist())
    return found


@pytest.mark.parametrize(
    ("accepted", "left"),
    [
        ([0, 2, 4], [0, 1, 2, 4, 6]),
        ([0], [0, 1, 2]),
        ([0, 1, 2], [0, 1, 2, 3, 4]),
        ([], [0, 1]),
        ([0, 4, 3], [0, 1, 2, 6, 5]),
    ],
)
def test_accepted_rows_move_to_the_front(accepted: list[int], left: list[int]) -> None:
    cache = cache_with(committed=2, pending=5)
    cache.keep(accepted)
    assert cache.length == len(left)
    assert rows_of(cache) == [left] * 7


@pytest.mark.parametrize("rows", [[5], [-1], [0, 0], [0, 2, 2]])
def test_rows_that_are_not_pending_or_stand_twice_are_refused(rows: list[int]) -> None:
    cache = cache_with(committed=2, pending=5)
    with pytest.raises(ValueError, match="5 rows are pending"):
        cache.keep(rows)
    assert cache.length == 2


def test_a_commit_can_be_made_once() -> None:
    cache = cache_with(committed=2, pending=3)
    cache.keep([0])
    with pytest.raises(ValueError, match="0 rows are pending"):
        cache.keep([1])


def test_a_pass_gets_views_of_the_rows_and_copies_nothing() -> None:
    cache = TargetCache(SHAPES, 8, (), hidden_size=5, dtype=torch.float32, device=CPU)
    keys, values = cache.layers.update(torch.ones(1, 1, 3, 6), torch.ones(1, 1, 3, 3), 1)
    assert keys.shape == (1, 1, 3, 6)
    assert values.shape == (1, 1, 3, 3)
    layer = cache.layers.layers[1]
    assert keys.data_ptr() == layer.keys.data_ptr()
    assert values.data_ptr() == layer.values.data_ptr()
    assert cache.features is None


def test_it_answers_transformers_questions() -> None:
    cache = cache_with(committed=2, pending=5)
    assert cache.layers.get_seq_length() == 2
    assert cache.layers.get_mask_sizes(4, 0) == (6, 0)
    assert cache.layers.get_max_length(0) == 10
    assert isinstance(cache.layers.layers[2], DummyLayer)
    assert not cache.layers.is_croppable


def test_transformers_caches_crop_by_negative_counts() -> None:
    """What this version does, and why rows are moved here and never cropped."""
    dynamic = DynamicCache()
    dynamic.update(torch.zeros(1, 1, 6, 2), torch.zeros(1, 1, 6, 2), 0)
    with pytest.raises(ValueError, match="positive value"):
        dynamic.crop(4)
    dynamic.crop(0)
    assert dynamic.get_seq_length() == 6
    dynamic.crop(-2)
    assert dynamic.get_seq_length() == 4
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, hidden_size=2)
    static = StaticCache(config=config, max_cache_len=8)
    static.update(torch.zeros(1, 1, 6, 2), torch.zeros(1, 1, 6, 2), 0)
    with pytest.raises((RuntimeError, ValueError)):
        static.crop(4)
