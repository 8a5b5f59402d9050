"""What the kernels' build says of itself; and on a GPU: no synchronisation, streams, graphs, faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from devices import needs_cuda
from test_ops import arguments

from ddtree import _kernels, build_ddtree_tree_from_topk, ops, verify_tree
from ddtree.launch import describe_kernels
from ddtree.padded import PaddedVerdicts, build_padded_trees, verify_padded_trees
from ddtree.sampling_batch import tree_speculative_sampling_target_only

CALLS = {"build_trees": ops.build_trees, "verify_trees": ops.verify_trees, "target_only": ops.target_only}


def test_a_build_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "cuda", None)
    cpu, cuda = describe_kernels()
    assert cpu == f"kernels: {_kernels.instruction_set()} on the CPU"
    assert cuda.startswith("kernels: none on CUDA; this build has no CUDA kernels")


@pytest.mark.parametrize(
    ("devices", "here"),
    [
        (([], "no CUDA-capable device is detected"), "no device here (no CUDA-capable device is detected)"),
        (([], ""), "no device here (none was found)"),
        ((["NVIDIA H100 (sm_90)"], ""), "NVIDIA H100 (sm_90)"),
    ],
)
def test_a_build_with_cuda_names_what_it_can_run(
    devices: tuple[list[str], str], here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = SimpleNamespace(devices=lambda: devices, architectures=lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(_kernels, "cuda", built)
    assert describe_kernels()[1].startswith("kernels: CUDA for sm_80, sm_90 and")
    assert describe_kernels()[1].endswith(here)


def as_list(outputs: Any, given: tuple[Any, ...]) -> list[torch.Tensor]:
    """An operator's results: what it returns, or what it wrote."""
    return [tensor.cpu() for tensor in (given[:3] if outputs is None else outputs)]


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
@pytest.mark.parametrize("name", CALLS)
def test_equal_to_the_cpu_without_synchronising(name: str) -> None:
    expected_given, given = arguments(name, "cpu"), arguments(name, "cuda")
    expected = as_list(CALLS[name](*expected_given), expected_given)
    with no_synchronisation():
        outputs = CALLS[name](*given)
    for one, other in zip(as_list(outputs, given), expected, strict=True):
        assert one.equal(other)


@needs_cuda
@pytest.mark.parametrize("name", CALLS)
def test_captured_and_replayed_it_gives_the_same(name: str) -> None:
    given = arguments(name, "cuda")
    CALLS[name](*given)
    expected = as_list(CALLS[name](*given), given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = CALLS[name](*given)
    for tensor in given[:3] if outputs is None else outputs:
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(as_list(outputs, given), expected, strict=True):
        written = other != -9  # target_only leaves the slots that it does not use
        assert one[written].equal(other[written])


@needs_cuda
def test_it_runs_on_the_current_stream() -> None:
    given, stream = arguments("verify_trees", "cuda"), torch.cuda.Stream()
    expected = as_list(ops.verify_trees(*given), given)
    logits = torch.zeros_like(given[0])
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        logits.copy_(given[0])
        outputs = ops.verify_trees(logits, *given[1:])
    stream.synchronize()
    for one, other in zip(as_list(outputs, given), expected, strict=True):
        assert one.equal(other)


@needs_cuda
def test_the_hosts_functions_take_cuda_tensors() -> None:
    log_probs = torch.log(torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2]], device="cuda"))
    token_ids = torch.tensor([[10, 11], [20, 21], [30, 31]], device="cuda")
    tree = build_ddtree_tree_from_topk(log_probs, token_ids, 5)
    assert tree.token_ids.tolist() == [10, 20, 30, 11, 21]
    with pytest.raises(ValueError, match="row 0, column 1 has a token id that stands earlier"):
        build_ddtree_tree_from_topk(log_probs, token_ids * 0, 5)
    logits, candidates, next_token, next_sibling, coins, _, *_ = arguments("verify_trees", "cuda")
    rule: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "final_coin": 0.5}
    rule |= {"threshold_single": 1.0, "threshold_acc": 1.0}
    walked = [tensor[0] for tensor in (logits, candidates, next_token, next_sibling)]
    status = torch.full((1,), -1, dtype=torch.int32, device="cuda")
    with no_synchronisation():
        padded = verify_tree(*walked, coins=coins[0], status=status, **rule)
    assert isinstance(padded, PaddedVerdicts)
    on_cpu = verify_tree(*(tensor.cpu() for tensor in walked), coins=coins[0].cpu(), **rule)
    assert padded.verdict(0) == on_cpu == verify_tree(*walked, coins=coins[0], **rule)
    assert status.tolist() == [0]


@needs_cuda
def test_without_status_a_fault_raises_and_healthy_rows_are_written() -> None:
    *given, status, single, acc = arguments("target_only", "cuda")
    given[9][1, 0, 3] = float("nan")
    with pytest.raises(ValueError, match=r"batch row 1, node 0 holds NaN .first at token 3"):
        tree_speculative_sampling_target_only(*given, None, single, acc)
    assert int(given[2][0]) >= 0
    assert int(given[2][1]) == -9
    tree_speculative_sampling_target_only(*given, None, single, acc, status=status)
    assert status.tolist() == [0, 1]


@needs_cuda
def test_offsets_are_64_bit() -> None:
    """Rows of which the last begins past 2^31 elements."""
    rows, size = 70_001, 32_000
    logits = torch.empty(1, rows, size, dtype=torch.bfloat16, device="cuda")
    logits[0, 0] = 0
    logits[0, -1] = 0
    logits[0, 0, 5] = logits[0, -1, 7] = 30
    next_token = torch.full((1, rows), -1, device="cuda")
    next_token[0, 0] = rows - 1
    tokens = torch.zeros(1, rows, dtype=torch.int64, device="cuda")
    tokens[0, -1] = 5
    padded = verify_padded_trees(
        logits,
        tokens,
        next_token,
        torch.full_like(next_token, -1),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        coins=torch.full((1, rows), 0.5, device="cuda"),
        final_coins=torch.full((1,), 0.5, device="cuda"),
    )
    assert padded.path[0, :3].tolist() == [0, rows - 1, -1]
    assert padded.outcome[0].tolist() == [1, 1, 7, 0]


@needs_cuda
def test_a_budget_above_the_largest_is_refused_by_name() -> None:
    rows = torch.zeros(1, 1, 1, device="cuda")
    with pytest.raises(ValueError, match="budget is 1025; it must be 0 to 1024 on cuda"):
        build_padded_trees(rows, rows.long(), 1025)
