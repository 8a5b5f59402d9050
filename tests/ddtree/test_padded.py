"""The padded forms: equal to the host's trees and walks one by one, on every device; faults stay where they
are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from devices import on_every_device
from sampling_reference import DTYPES, star

from ddtree import _kernels, build_ddtree_tree, compile_ddtree_retrieve, launch, verify_tree
from ddtree.padded import PaddedVerdicts, build_padded_trees, verify_padded_trees
from ddtree.sampling import SamplingFault, TreeVerdict

SHAPES = [(1, 1), (3, 5), (15, 64), (64, 20)]
RULES = [(1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 50, 1.0), (1.0, 0, 0.9), (0.8, 20, 0.95)]


def candidate_rows(batch: int, rows: int, ranks: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Descending log-probabilities, many of them equal, a few -inf; different tokens in each row."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.log_softmax(3 * torch.randn(batch, rows, ranks, generator=generator), -1)
    log_probs = (2 * log_probs).round().div(2).sort(-1, descending=True).values
    log_probs[-1, :, ranks - ranks // 4 :] = -math.inf
    token_ids = torch.rand(batch, rows, 4 * ranks, generator=generator).argsort(-1)[..., :ranks]
    return log_probs, token_ids


@on_every_device
@pytest.mark.parametrize("budget", [0, 1, 16, 100, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_trees_are_the_hosts(budget: int, dtype: torch.dtype, device: str) -> None:
    for rows, ranks in SHAPES:
        log_probs, token_ids = candidate_rows(3, rows, ranks, seed=budget + ranks)
        log_probs = log_probs.to(dtype)
        generator = torch.Generator().manual_seed(7)
        own = torch.randint(-1, rows, (3, rows, ranks), generator=generator)
        for child_rows in (None, own):
            moved = None if child_rows is None else child_rows.to(device)
            built = build_padded_trees(log_probs.to(device), token_ids.to(device), budget, moved)
            for index in range(3):
                children = None if child_rows is None else child_rows[index]
                tree = build_ddtree_tree(log_probs[index], token_ids[index], children, budget)
                assert built.tree(index).num_nodes == tree.num_nodes
                assert (built.tree(index).buffer == tree.buffer).all()
                arrays = compile_ddtree_retrieve(tree, budget, batch_offset=index * (budget + 1))
                expected = [arrays.retrieve_index, arrays.retrieve_next_token, arrays.retrieve_next_sibling]
                assert built.retrieve[index].cpu().equal(torch.stack(expected))
                visible = torch.eye(budget + 1, dtype=torch.bool)
                visible[:, 0] = True
                visible[: tree.num_nodes + 1, : tree.num_nodes + 1] = tree.visibility()
                assert built.visible[index].cpu().equal(visible)


@on_every_device
def test_a_faulty_tree_is_the_root_alone(device: str) -> None:
    log_probs, token_ids = candidate_rows(3, 4, 6, seed=1)
    log_probs[1, 2, 3] = math.nan
    built = build_padded_trees(log_probs.to(device), token_ids.to(device), 9)
    assert built.status[:, 1].tolist() == [0, 8 * (2 * 6 + 3) + 1, 0]
    assert built.status[1, 0] == 0
    assert built.retrieve[1, 1].tolist() == [-1] * 10
    assert built.fields[1, 2].tolist() == [-1] * 10
    assert built.tree(0).num_nodes == built.tree(2).num_nodes == 9
    with pytest.raises(ValueError, match="row 2, column 3 is not a number"):
        built.tree(1)


@on_every_device
@pytest.mark.parametrize(("entry", "rank"), [((1, 40), 17), ((0, 63), 0), ((2, 1), 0)])
def test_a_token_twice_is_found(entry: tuple[int, int], rank: int, device: str) -> None:
    log_probs, token_ids = torch.full((1, 3, 64), -5.0), torch.arange(192).reshape(1, 3, 64)
    token_ids[0, entry[0], entry[1]] = token_ids[0, entry[0], rank]
    built = build_padded_trees(log_probs.to(device), token_ids.to(device), 4)
    with pytest.raises(ValueError, match=f"row {entry[0]}, column {entry[1]} has a token id that stands"):
        built.tree(0)


def walks(
    logits: torch.Tensor, seed: int, device: str, rule: tuple[float, int, float]
) -> tuple[PaddedVerdicts, list[TreeVerdict]]:
    """The padded verdicts on a device, and verify_tree's on the CPU, over trees of tokens below 32."""
    batch, nodes, _ = logits.shape
    generator = torch.Generator().manual_seed(seed)
    log_probs, token_ids = candidate_rows(batch, 4, 8, seed)
    built = build_padded_trees(log_probs, token_ids, nodes - 1)
    candidates = built.candidates.contiguous()
    coins = torch.rand(batch, nodes, generator=generator)
    finals = torch.rand(batch, generator=generator)
    temperature, top_k, top_p = rule
    settled: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    padded = verify_padded_trees(
        logits.to(device),
        candidates.to(device),
        *(built.retrieve[:, i].to(device) for i in (1, 2)),
        coins=coins.to(device),
        final_coins=finals.to(device),
        **settled,
    )
    expected = []
    for i in range(batch):
        verdict = verify_tree(
            logits[i],
            candidates[i],
            built.retrieve[i, 1],
            built.retrieve[i, 2],
            coins=coins[i],
            final_coin=float(finals[i]),
            threshold_single=1.0,
            threshold_acc=1.0,
            **settled,
        )
        assert isinstance(verdict, TreeVerdict)
        expected.append(verdict)
    return padded, expected


@on_every_device
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_walks_are_the_hosts(rule: tuple[float, int, float], dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (33, 1024, 1027, 4096, 5001):
        logits = 2 * torch.randn(2, 7, size, generator=generator)
        logits[:, :, :32] += 5  # the trees' tokens are likely
        padded, expected = walks(logits.to(dtype), size, device, rule)
        assert padded.status.tolist() == [0, 0]
        assert [padded.verdict(i) for i in range(2)] == expected
        used = int(padded.outcome[0, 0]) + 1
        assert (padded.path[0, used:] == -1).all()
        assert (padded.tried[0, int(padded.outcome[0, 1]) :] == -1).all()


@on_every_device
@pytest.mark.parametrize("first", [0, 1, 3, 8])
def test_rows_may_begin_anywhere(first: int, device: str) -> None:
    generator = torch.Generator().manual_seed(first)
    wide = 3 * torch.randn(2, 5, 2100 + first, generator=generator).bfloat16()
    padded, expected = walks(wide[:, :, first : first + 2050], 5, device, (1.0, 0, 1.0))
    assert [padded.verdict(i) for i in range(2)] == expected


@on_every_device
def test_a_faulty_walk_leaves_nothing_and_the_others_alone(device: str) -> None:
    logits = torch.zeros(4, 3, 40, device=device)
    logits[1, 0, 7] = math.nan
    logits[2, 0] = -math.inf
    tokens, next_token, next_sibling = (array.expand(4, 3).to(device) for array in star([4, 9]).arrays())
    broken = next_sibling.clone()
    broken[3, 1] = 1
    padded = verify_padded_trees(
        logits,
        tokens,
        next_token,
        broken,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        coins=torch.full((4, 3), 0.99, device=device),
        final_coins=torch.zeros(4, device=device),
    )
    assert padded.status.tolist() == [0, 1, 4, 8 + 7]
    assert padded.outcome[0].tolist() == [0, 2, 0, 1]
    for faulty in (1, 2, 3):
        assert padded.outcome[faulty].tolist() == [-1] * 4
        assert padded.path[faulty].tolist() == [-1] * 3
        assert padded.bonus[faulty].tolist() == [0.0] * 3
    with pytest.raises(SamplingFault, match="batch row 1, node 0 holds NaN"):
        padded.verdict(1)


def test_shapes_dtypes_and_devices_are_checked_by_name() -> None:
    log_probs, token_ids = candidate_rows(2, 3, 4, seed=0)
    with pytest.raises(ValueError, match=r"top_log_probs must be float32 or float64 \[trees, rows, cand"):
        build_padded_trees(log_probs[0], token_ids[0], 3)
    with pytest.raises(ValueError, match=r"top_token_ids must be torch\.int64 \[2, 3, 4\] on cpu"):
        build_padded_trees(log_probs, token_ids.int(), 3)
    with pytest.raises(ValueError, match="child_rows must be"):
        build_padded_trees(log_probs, token_ids, 3, token_ids[:1])
    with pytest.raises(ValueError, match="budget is -1; it must be 0 to 1048576 on cpu"):
        build_padded_trees(log_probs, token_ids, -1)
    with pytest.raises(ValueError, match="are on meta; the kernels run on the CPU and on CUDA"):
        build_padded_trees(log_probs.to("meta"), token_ids.to("meta"), 3)
    tree = star([1]).arrays()
    with pytest.raises(ValueError, match=r"coins must be torch\.float32 \[1, 2\] on cpu"):
        verify_padded_trees(
            torch.zeros(1, 2, 3),
            *(array[None] for array in tree),
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            coins=torch.zeros(1, 3),
            final_coins=torch.zeros(1),
        )


def test_a_build_without_cuda_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "cuda", None)
    on_a_gpu = cast(torch.Tensor, SimpleNamespace(is_cpu=False, is_cuda=True, device="cuda:0"))
    with pytest.raises(ValueError, match=r"on cuda:0; this build has no CUDA kernels: .*DDTREE_CUDA=ON"):
        launch.launch("verify_batch", on_a_gpu, [])
    assert not launch.has_kernels_for(on_a_gpu)
