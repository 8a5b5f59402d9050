"""Coins: Philox4x32-10 and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.sampling import coins


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 from its paper."""
    mask = 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    """The vectors published with the generator hold for the reference, and the reference for our coins."""
    assert philox4x32(counter, key) == words


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**64 - 1), count=st.integers(1, 20))
def test_coins_are_philox(seed: int, step: int, count: int) -> None:
    def uniform(node: int, stream: int) -> float:
        words = philox4x32([node, stream, step & 0xFFFFFFFF, step >> 32], [seed & 0xFFFFFFFF, seed >> 32])
        return (words[0] >> 8) * 2.0**-24

    drawn, final = coins(seed, step, count)
    assert drawn.dtype == torch.float32
    assert drawn.tolist() == [uniform(node, 0) for node in range(count)]
    assert final == uniform(0, 1)


def test_the_first_coin_of_seed_zero_is_the_known_answer() -> None:
    assert coins(0, 0, 1)[0].item() == (0x6627E8D5 >> 8) * 2.0**-24


def test_coins_depend_neither_on_the_budget_nor_on_order() -> None:
    assert coins(7, 3, 1025)[0][:16].tolist() == coins(7, 3, 16)[0].tolist()
    assert coins(7, 3, 1)[1] == coins(7, 3, 1025)[1]
    assert coins(7, 3, 4)[0].tolist() != coins(8, 3, 4)[0].tolist() != coins(7, 4, 4)[0].tolist()
