"""The device's coins are the kernels', to the bit, for every seed and step."""

from __future__ import annotations

import pytest
import torch
from devices import on_every_device

from ddtree.philox import PhiloxCoins, as_int64
from ddtree.sampling import coins

LARGEST = 2**64 - 1


@on_every_device
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63, LARGEST, 0x123456789ABCDEF0])
@pytest.mark.parametrize("step", [0, 1, 77, 2**32, 2**40 + 3, LARGEST])
def test_coins_are_the_kernels(seed: int, step: int, device: str) -> None:
    count = 257
    draw = PhiloxCoins(count, torch.device(device))
    given = [torch.tensor([as_int64(number)], device=device) for number in (seed, step)]
    nodes, final = draw(*given)
    expected, expected_final = coins(seed, step, count)
    assert nodes.cpu().equal(expected)
    assert final.dtype == torch.float32 and final.item() == expected_final


def test_a_coin_does_not_depend_on_how_many_are_drawn() -> None:
    seed, step = torch.tensor([7]), torch.tensor([3])
    few, few_final = PhiloxCoins(1, torch.device("cpu"))(seed, step)
    many, many_final = PhiloxCoins(256, torch.device("cpu"))(seed, step)
    assert few.equal(many[:1]) and few_final.equal(many_final)
