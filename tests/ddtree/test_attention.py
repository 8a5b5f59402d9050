"""The attention function against plain arithmetic with repeated keys, the mask against its definition."""

from __future__ import annotations

import pytest
import torch

from ddtree.attention import tree_attention, tree_mask

HEADS, KEY_HEADS, DIM, VALUE_DIM = 6, 2, 8, 5


def inputs(n: int, total: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, n, HEADS, DIM, generator=generator).transpose(1, 2)
    key = torch.randn(1, KEY_HEADS, total, DIM, generator=generator)
    return query, key, torch.randn(1, KEY_HEADS, total, VALUE_DIM, generator=generator)


def expected(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    groups = HEADS // KEY_HEADS
    key, value = key.repeat_interleave(groups, 1).double(), value.repeat_interleave(groups, 1).double()
    scores = query.double() @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.double().exp()[None, :, None, None]
    return (weights / total @ value).transpose(1, 2).float()


def sight(n: int, total: int) -> torch.Tensor:
    seen = torch.ones(n, total, dtype=torch.bool)
    seen[:, total - n :] = torch.eye(n, dtype=torch.bool)
    seen[1:, total - n] = True
    return seen


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("extra", ["plain", "softcap", "sinks", "both"])
def test_grouped_heads_read_keys_as_they_lie(n: int, extra: str) -> None:
    total = 20
    query, key, value = inputs(n, total)
    seen = sight(n, total)
    mask = tree_mask(seen[:, total - n :], total - n, torch.float32)
    options = {
        "softcap": 1.5 if extra in ("softcap", "both") else None,
        "s_aux": torch.linspace(-1, 2, HEADS) if extra in ("sinks", "both") else None,
    }
    output, weights = tree_attention(torch.nn.Module(), query, key, value, mask, scaling=0.3, **options)
    assert weights is None
    assert output.shape == (1, n, HEADS, VALUE_DIM)
    reference = expected(query, key, value, seen, 0.3, options["softcap"], options["s_aux"])
    torch.testing.assert_close(output, reference, rtol=1e-5, atol=1e-5)


def test_without_a_mask_and_without_a_scale() -> None:
    query, key, value = inputs(1, 7)
    output, _ = tree_attention(torch.nn.Module(), query, key, value, None)
    torch.testing.assert_close(
        output,
        expected(query, key, value, torch.ones(1, 7, dtype=torch.bool), DIM**-0.5),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_position_bias_is_refused() -> None:
    query, key, value = inputs(1, 7)
    with pytest.raises(NotImplementedError, match="position bias"):
        tree_attention(torch.nn.Module(), query, key, value, None, position_bias=torch.zeros(1))


def test_the_mask_shows_the_prefix_and_the_ancestors() -> None:
    visibility = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = tree_mask(visibility, 2, torch.bfloat16)
    assert mask.shape == (1, 1, 3, 5)
    assert mask.dtype is torch.bfloat16
    assert ((mask[0, 0] == 0).int().tolist()) == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    assert mask.min() == torch.finfo(torch.bfloat16).min


def test_a_window_counts_positions_and_not_rows() -> None:
    """Siblings share a position, so both see back to the same token: position p sees p - 2, p - 1 and p."""
    visibility = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = tree_mask(visibility, 4, torch.float32, positions=torch.tensor([4, 5, 5]), window=3)
    seen = (mask[0, 0] == 0).int().tolist()
    assert seen == [[0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 1]]
