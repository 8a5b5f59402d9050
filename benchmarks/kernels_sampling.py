"""The samplers on one thread, each beside what it replaces, in turn in one run.

sampler    verify_tree straight from float32 logits against torch.softmax of all rows and a walk in Python,
           budget 63, vocabulary 49152, for walks that accept 0 to 4 drafts
step       verify_tree and observe_rows of one step at budget 15 on bfloat16 logits, with the drafter's rows
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from common import commit, machine

from ddtree import _kernels, build_ddtree_tree_from_topk, compile_ddtree_retrieve
from ddtree.observe import observe_rows
from ddtree.sampling import verify_tree

VOCABULARY = 49_152
REJECT, ACCEPT = 1 - 2**-24, 0.0


@dataclass(frozen=True)
class Step:
    """A tree, logits of its rows, and coins that lead `depth` drafts down."""

    depth: int
    tokens: list[int]
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    logits: torch.Tensor
    coins: torch.Tensor
    children: list[list[int]]


def make_step(budget: int, depth: int, dtype: torch.dtype, seed: int) -> Step:
    """The tree of random marginals; the target likes what the drafter likes."""
    generator = torch.Generator().manual_seed(seed)
    marginals = torch.log_softmax(torch.randn(8, VOCABULARY, generator=generator) * 12, -1)
    top_log_probs, top_token_ids = marginals.topk(64)
    tree = build_ddtree_tree_from_topk(top_log_probs, top_token_ids, budget)
    arrays = compile_ddtree_retrieve(tree, budget)
    tokens = [0, *tree.token_ids.tolist()]
    children: list[list[int]] = [[] for _ in tokens]
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            children[parent].append(node)
    logits = torch.randn(budget + 1, VOCABULARY, generator=generator) * 3
    coins = torch.full((budget + 1,), REJECT)
    node = 0
    for _ in range(depth):
        coins[node] = ACCEPT
        node = children[node][0]
    return Step(
        depth,
        tokens,
        (torch.tensor(tokens), arrays.retrieve_next_token, arrays.retrieve_next_sibling),
        logits.to(dtype),
        coins,
        [[tokens[child] for child in kids] for kids in children],
    )


def python_walk(step: Step, temperature: float, final: float) -> tuple[list[int], int]:
    """torch.softmax of every row, then the walk in Python; the bonus token by torch's cumsum."""
    probs = torch.softmax(step.logits if temperature == 1 else step.logits / temperature, dim=-1)
    next_token, next_sibling = (array.tolist() for array in step.arrays[1:])
    coins = step.coins.tolist()
    node, path = 0, [0]
    while True:
        child, cumulative, tried = next_token[node], 0.0, []
        while child != -1:
            p = float(probs[node, step.tokens[child]])
            cumulative += p
            if p > 0 and coins[node] < cumulative:
                break
            tried.append(step.tokens[child])
            child = next_sibling[child]
        if child == -1:
            break
        node = child
        path.append(node)
    row = probs[node].clone()
    row[tried] = 0
    sums = row.cumsum(0)
    return path, int(torch.searchsorted(sums, final * sums[-1], right=True))


def ours(step: Step, temperature: float, final: float) -> Any:
    return verify_tree(
        step.logits,
        *step.arrays,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        coins=step.coins,
        final_coin=final,
        threshold_single=1.0,
        threshold_acc=1.0,
    )


def in_turn(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """Median seconds of each call, all of them once in every round."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 2):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken[2:]) for taken in times]


def sampler(rounds: int) -> Iterator[str]:
    for temperature in (1.0, 0.7):
        ours_s, theirs_s = [], []
        for depth in range(5):
            step = make_step(63, depth, torch.float32, seed=depth)
            verdict = ours(step, temperature, 0.4)
            path, bonus = python_walk(step, temperature, 0.4)
            assert verdict.accept_token_num == depth
            assert (verdict.accept_index, verdict.bonus_token_id) == (path, bonus)
            mine, other = in_turn(
                rounds, partial(ours, step, temperature, 0.4), partial(python_walk, step, temperature, 0.4)
            )
            ours_s.append(mine)
            theirs_s.append(other)
            yield (
                f"  temperature {temperature}, {depth} accepted: {mine * 1e6:8.1f} us against "
                f"{other * 1e6:9.1f} us: {other / mine:5.1f} times faster"
            )
        mine, other = statistics.mean(ours_s), statistics.mean(theirs_s)
        yield (
            f"  temperature {temperature}, mean over 0 to 4: {mine * 1e6:5.1f} us against "
            f"{other * 1e6:9.1f} us: {other / mine:5.1f} times faster"
        )


def step_of_the_decoder(rounds: int) -> Iterator[str]:
    generator = torch.Generator().manual_seed(9)
    draft = (torch.randn(7, VOCABULARY, generator=generator) * 3).bfloat16()
    for temperature, depth in ((1.0, 0), (1.0, 1), (1.0, 4), (0.7, 1)):
        step = make_step(15, depth, torch.bfloat16, seed=depth)
        verdict = ours(step, temperature, 0.4)
        look = partial(
            observe_rows,
            step.logits,
            verdict.accept_index,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            children=[step.children[node] for node in verdict.accept_index],
            draft_logits=draft,
            draft_rows=list(range(depth + 1)),
            draft_temperature=1.0,
        )
        verify_s, observe_s = in_turn(rounds, partial(ours, step, temperature, 0.4), look)
        yield (
            f"  temperature {temperature}, {depth} accepted: verify_tree {verify_s * 1e6:6.1f} us, "
            f"observe_rows {observe_s * 1e6:6.1f} us, together {(verify_s + observe_s) * 1e3:.3f} ms"
        )


def report(rounds: int) -> Iterator[str]:
    """The lines that this benchmark prints."""
    yield f"sampler from logits, {_kernels.instruction_set()}, against softmax of all rows and a Python walk"
    yield from sampler(rounds)
    yield "one step of the decoder, budget 15, bfloat16"
    yield from step_of_the_decoder(rounds)


def run(report: Callable[[int], Iterator[str]], description: str | None) -> None:
    """A kernels benchmark as a program: one thread, every line as it comes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="measurements of each, in turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{commit()} on {machine()}")
    for line in report(arguments.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    run(report, __doc__)
