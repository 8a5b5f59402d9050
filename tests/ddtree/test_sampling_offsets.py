"""More than 2^32 elements: offsets are 64-bit. Nearly all of them lie in pages that are never touched."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from ddtree import tree_speculative_sampling_target_only, verify_tree

NODES, SIZE = 30_000, 151_936
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named in Python 3.12


@pytest.fixture
def zeros() -> torch.Tensor:
    """float32 [NODES, SIZE]."""
    assert NODES * SIZE > 2**32
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    try:
        pages = mmap.mmap(-1, 4 * NODES * SIZE, flags=flags)
    except OSError:
        pytest.skip("this machine has no 18 GB of address space")
    return torch.from_numpy(np.frombuffer(pages, dtype=np.float32)).reshape(NODES, SIZE)


def only_child(nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A root whose one child, with token 7, is the last of `nodes` nodes; the others are padding."""
    candidates, next_token = torch.zeros(nodes, dtype=torch.int64), torch.full((nodes,), -1)
    candidates[-1], next_token[0] = 7, nodes - 1
    return candidates, next_token, torch.full((nodes,), -1)


def test_probabilities(zeros: torch.Tensor) -> None:
    nodes = NODES // 2
    probs = zeros.reshape(2, nodes, SIZE)
    probs[0, 0, 5] = probs[1, 0, 7] = probs[1, -1, SIZE - 1] = 1.0
    arrays = [array.repeat(2, 1) for array in only_child(nodes)]
    predicts = torch.full((2 * nodes,), -9, dtype=torch.int32)
    accept_index = torch.full((2, 3), -9, dtype=torch.int32)
    accept_token_num = torch.full((2,), -9, dtype=torch.int32)
    slots = torch.arange(2 * nodes).reshape(2, nodes)
    coins = torch.zeros(2, nodes)
    outputs = (predicts, accept_index, accept_token_num)
    tree_speculative_sampling_target_only(
        *outputs, arrays[0], slots, *arrays[1:], coins, torch.full((2,), 0.5), probs, None
    )
    assert accept_index.tolist() == [[0, -9, -9], [nodes, 2 * nodes - 1, -9]]
    assert predicts[[0, nodes, 2 * nodes - 1]].tolist() == [5, 7, SIZE - 1]


def test_logits(zeros: torch.Tensor) -> None:
    zeros[0, 7] = zeros[-1, SIZE - 1] = 50.0
    verdict = verify_tree(
        zeros,
        *only_child(NODES),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        coins=torch.full((NODES,), 0.5),
        final_coin=0.5,
        threshold_single=1.0,
        threshold_acc=1.0,
    )
    assert verdict.accept_index == [0, NODES - 1]
    assert verdict.bonus_token_id == SIZE - 1
