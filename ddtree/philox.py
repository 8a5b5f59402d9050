"""The coins of `ddtree.sampling.coins` as device work: Philox4x32-10 in 64-bit integer arithmetic.

The kernels' Philox (csrc/include/ddtree/philox.h; Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
easy as 1, 2, 3", 2011) runs where seed and step are known on the host. Here both are tensors, so that a
captured step draws new coins each time it is replayed.
"""

from __future__ import annotations

from typing import Any

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_NODES, _FINAL = 0, 1  # streams


class PhiloxCoins:
    """Draws the coins of `count` nodes and of the bonus token; holds the constants on the device."""

    def __init__(self, count: int, device: torch.device) -> None:
        words: dict[str, Any] = {"dtype": torch.int64, "device": device}
        self._nodes = torch.tensor([*range(count), 0], **words)
        self._streams = torch.tensor([_NODES] * count + [_FINAL], **words)
        self._multipliers = torch.tensor(_MULTIPLIERS, **words)[:, None]
        # What each round adds to the key, modulo 2^32: [rounds, 2, 1].
        rounds = [[[weyl * i & _WORD] for weyl in _WEYL] for i in range(_ROUNDS)]
        self._key_steps = torch.tensor(rounds, **words)

    def __call__(self, seed: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """seed, step: int64 [1], the bits of numbers below 2^64. Returns (float32 [count], float32 [1]), to
        the bit what `ddtree.sampling.coins` gives for them. Never synchronises."""
        key = torch.stack((seed & _WORD, (seed >> 32) & _WORD))
        keys = (key + self._key_steps) & _WORD
        step_words = [(word & _WORD).expand_as(self._nodes) for word in (step, step >> 32)]
        # Words 0 and 2 of the counters are multiplied, 1 and 3 are not.
        even = torch.stack((self._nodes, step_words[0]))
        odd = torch.stack((self._streams, step_words[1]))
        for round_key in keys:
            # The product of two words fits 64 bits; as a signed number it has the same bits.
            product = (even * self._multipliers).flip(0)
            even = ((product >> 32) & _WORD) ^ odd ^ round_key
            odd = product & _WORD
        drawn = (even[0] >> 8).to(torch.float32) * 2.0**-24
        return drawn[:-1], drawn[-1:]


def as_int64(number: int) -> int:
    """The signed 64-bit number with the bits of 0 <= number < 2^64."""
    return number - 2**64 if number >= 2**63 else number
