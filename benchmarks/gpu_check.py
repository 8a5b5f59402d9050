"""The CUDA kernels on a GPU, each compared with the CPU's results and measured; gpu_check.sh calls it.

trees     build + encoding + visibility on the device, against torch.topk's candidates copied to the host and
          a Python heap; 16 rows of 64, budgets 16 to 1024
sampler   from bfloat16 logits, against softmax over all rows and the sampler from probabilities; V 32k and
          152k, n 17, 65, 257, batch 1 and 32, where memory allows
steps     of a Qwen3-8B-shaped target and a DFlash drafter, random in bfloat16: graph replay equal to eager to
          the bit, no synchronisation; the time of both beside an autoregressive step's, and each stage's

Times are medians of CUDA events over launches on one stream, without synchronisation in between. "GB/s" is
what the kernel moves at least (the visited rows read once, and 12 bytes of scratch for each element), beside
the speed of a copy. --dry-run does the same in small on the CPU: it shows that this program works, not how
fast anything is.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import commit

import ddtree

TESTS = ("padded", "ops", "launch", "philox", "static_step", "static_pipeline", "graphs")
ROWS, CANDIDATES = 16, 64
ROUNDS = 30
RULE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
FILTERS = {"plain": RULE, "top-k 50, top-p .95": RULE | {"top_k": 50, "top_p": 0.95}}


def use_module(path: Path) -> None:
    """Take the kernels from this file instead of the installed one."""
    spec = importlib.util.spec_from_file_location("ddtree._kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["ddtree._kernels"] = module
    ddtree._kernels = module  # type: ignore[attr-defined]


def seconds(call: Callable[[], Any], device: str) -> float:
    """The median time of a call on the device."""
    for _ in range(3):
        call()
    if device == "cpu":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ROUNDS)
    ]
    for first, last in events:
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in events) / 1e3


def on_the_clock(call: Callable[[], Any]) -> float:
    """The median time of a call that ends on the host."""
    taken = []
    for _ in range(ROUNDS // 3):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def copy_speed(device: str) -> float:
    """Bytes a second, read and written."""
    source = torch.empty(2**28 if device == "cuda" else 2**22, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), device)


def trees(device: str, budgets: tuple[int, ...]) -> Iterator[str]:
    from kernels import python_heap

    from ddtree import build_ddtree_tree_from_topk
    from ddtree.padded import build_padded_trees

    logits = 3 * torch.randn(ROWS, 32_000, generator=torch.Generator().manual_seed(1))
    log_probs, token_ids = (part.to(device) for part in logits.log_softmax(-1).topk(CANDIDATES))
    for budget in budgets:
        built = build_padded_trees(log_probs[None], token_ids[None], budget)
        expected = build_ddtree_tree_from_topk(log_probs.cpu(), token_ids.cpu(), budget)
        assert (built.tree(0).buffer == expected.buffer).all(), f"budget {budget}: not the CPU's tree"
        ours = seconds(lambda: build_padded_trees(log_probs[None], token_ids[None], budget), device)  # noqa: B023
        heap = on_the_clock(lambda: python_heap(log_probs.cpu(), token_ids.cpu(), budget))  # noqa: B023
        times = f"{ours * 1e6:8.1f} us, host {heap * 1e6:8.1f} us: {heap / ours:6.1f} times"
        yield f"trees, budget {budget:4}: {times}"


def walk_arguments(device: str, size: int, nodes: int, batch: int) -> dict[str, torch.Tensor]:
    """Trees of the rows' likeliest tokens, and coins that accept some."""
    from ddtree.padded import build_padded_trees

    generator = torch.Generator(device).manual_seed(size + nodes + batch)
    logits = torch.empty(batch, nodes, size, dtype=torch.bfloat16, device=device)
    for tree in logits:  # one by one: normal numbers are drawn in float32
        tree.copy_(3 * torch.randn(nodes, size, generator=generator, device=device))
    logits[:, :, :CANDIDATES] += 8
    token_ids = torch.arange(CANDIDATES, device=device).expand(batch, ROWS, CANDIDATES).contiguous()
    log_probs = torch.linspace(-1, -6, CANDIDATES, device=device).expand(batch, ROWS, CANDIDATES)
    built = build_padded_trees(log_probs.contiguous(), token_ids, nodes - 1)
    return {
        "logits": logits,
        "candidates": built.candidates.contiguous(),
        "retrieve_next_token": built.retrieve[:, 1].contiguous(),
        "retrieve_next_sibling": built.retrieve[:, 2].contiguous(),
        "coins": torch.rand(batch, nodes, generator=generator, device=device),
        "final_coins": torch.rand(batch, generator=generator, device=device),
    }


def from_probabilities(given: dict[str, torch.Tensor]) -> Callable[[], None]:
    """What an engine without a sampler from logits does: softmax over all rows, then SGLang's interface."""
    from ddtree import tree_speculative_sampling_target_only

    batch, nodes, _ = given["logits"].shape
    integers = {"dtype": torch.int32, "device": given["logits"].device}
    outputs = [torch.empty(shape, **integers) for shape in ((batch * nodes,), (batch, nodes), (batch,))]
    status = torch.empty(batch, **integers)
    index = torch.arange(batch * nodes, device=status.device).reshape(batch, nodes)

    def call() -> None:
        probs = torch.softmax(given["logits"], -1, dtype=torch.float32)
        trees = (given["candidates"], index, given["retrieve_next_token"], given["retrieve_next_sibling"])
        coins = (given["coins"], given["final_coins"])
        tree_speculative_sampling_target_only(*outputs, *trees, *coins, probs, None, status=status)

    return call


def sampler(device: str, sizes: tuple[int, ...], copied: float) -> Iterator[str]:
    from ddtree.padded import verify_padded_trees

    shapes = [(v, n, b) for v in sizes for n in (17, 65, 257) for b in (1, 32)]
    for size, nodes, batch in shapes if device == "cuda" else shapes[:2]:
        name = f"sampler, V {size:6}, n {nodes:3}, batch {batch:2}"
        if device == "cuda" and torch.cuda.mem_get_info()[0] < 16 * size * nodes * batch:
            yield f"{name}: left out, it needs {16 * size * nodes * batch / 2**30:.0f} GiB"
            continue
        given = walk_arguments(device, size, nodes, batch)
        theirs = seconds(from_probabilities(given), device)
        for label, rule in FILTERS.items():
            verdicts = verify_padded_trees(**given, **rule)
            few = {key: value[:2].cpu() for key, value in given.items()}
            expected = verify_padded_trees(**few, **rule)
            for field in ("status", "path", "outcome", "tried", "decisions", "bonus"):
                mine = getattr(verdicts, field)[:2].cpu()
                assert mine.equal(getattr(expected, field)), f"{name}, {label}: {field} is not the CPU's"
            ours = seconds(lambda: verify_padded_trees(**given, **rule), device)  # noqa: B023
            visited = int((verdicts.outcome[:, 0] + 1).sum())
            moved = visited * size * (given["logits"].element_size() + 12) / ours
            speed = f"{visited / batch:.1f} rows, {moved / 1e9:7.1f} GB/s, {moved / copied:4.0%} of a copy"
            against = f"softmax of all rows {theirs * 1e6:9.1f} us: {theirs / ours:6.1f} times"
            yield f"{name}, {label:19}: {ours * 1e6:8.1f} us ({speed}), {against}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", type=Path, help="the built ddtree._kernels (default: the installed one)")
    parser.add_argument("--tests", action="store_true", help="run the kernels' tests and nothing else")
    parser.add_argument("--dry-run", action="store_true", help="in small, on the CPU")
    arguments = parser.parse_args()
    if arguments.module:
        use_module(arguments.module)
    if arguments.tests:
        import pytest

        folder = Path(__file__).parents[1] / "tests" / "ddtree"
        return int(pytest.main(["-rs", *(str(folder / f"test_{name}.py") for name in TESTS)]))
    from gpu_step import steps

    from ddtree.launch import describe_kernels

    device = "cpu" if arguments.dry_run else "cuda"
    copied = copy_speed(device)
    table = [
        f"commit {commit()}, torch {torch.__version__}",
        *describe_kernels(),
        f"copy: {copied / 1e9:.1f} GB/s",
    ]
    budgets = (16, 64) if arguments.dry_run else (16, 32, 64, 128, 256, 512, 1024)
    sizes = (2_000,) if arguments.dry_run else (32_000, 151_936)
    for lines in (trees(device, budgets), sampler(device, sizes, copied), steps(device)):
        for line in lines:
            print(line, flush=True)
            table.append(line)
    print("", "== the whole, equal to the CPU in every case", *table, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
