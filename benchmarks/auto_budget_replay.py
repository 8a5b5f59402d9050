"""Budget "auto" without a machine's noise: replayed along texts of the target, at times written down here.

Every prompt is decoded plainly, and at each position the drafter drafts 63 nodes: which of them the text
walks through is what any budget would have accepted there (at temperature 0 exactly, above it equal in law).
So a policy's steps follow without a pass, and their time from a staircase: what budget "auto" then chooses is
compared with the best fixed budget of 7, 15, 31, 63 in hindsight, on equal terms. What it cannot show is how
well times are learned; auto_budget.py measures the whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import commit
from numpy.typing import NDArray

from app.bench.intervals import geometric_interval
from app.bench.prompts import OWN_PROMPTS, read_prompts, sample
from ddtree.autobudget import AutoBudget, StepTimes
from ddtree.decoder import TreeDecoder
from ddtree.drafters.base import DRAFT_TEMPERATURE, Context
from ddtree.engine import LoadedEngine, load_engine
from ddtree.settings import Settings
from ddtree.trace import Timing
from ddtree.tree import build_ddtree_tree

CEILING = 63
FIXED = (7, 15, 31, 63)
UNTIMED = Timing(
    draft=None, build=None, encode=None, verify=None, sample=None, commit=None, other=None, total=0
)

Position = tuple[NDArray[np.float64], list[int]]
"""The nodes' log-weights [N], and the path that the text walks (root first)."""

Learn = Callable[[int, list[int]], None]
"""What a step did: its budget, the path."""
Policy = Callable[[NDArray[np.float64]], tuple[int, bool]]
"""(budget, whether anything was drafted) of a position's nodes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Milliseconds: of a pass by its rows, and of the rest of a step that drafts and of one that does not."""

    name: str
    passes: dict[int, float]
    drafting: float
    plain: float

    def step(self, rows: int, drafted: bool) -> float:
        stair = min(count for count in self.passes if count >= rows)
        return self.passes[stair] + (self.drafting if drafted else self.plain)


MACHINES = (
    Machine("two quiet cores", {1: 8, 8: 12, 16: 16, 24: 21, 32: 27, 48: 38, 64: 50}, 4.5, 0.7),
    Machine("one busy core", {1: 14, 8: 16, 16: 17.7, 24: 22, 32: 24.5, 48: 33.3, 64: 40}, 6.0, 0.8),
    Machine("rows nearly free", {1: 20, 8: 20.5, 16: 21, 24: 22, 32: 23, 48: 25, 64: 27}, 3.0, 0.8),
)


class WrittenTimes(StepTimes):
    """A machine's times, which no step changes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.passes)
        self._machine = machine

    def of_rest(self, source: str | None) -> float:
        return self._machine.drafting if source else self._machine.plain

    def saw(self, source: str | None, rows: int, timing: Timing, warm: bool = True) -> None:
        pass


def positions(engine: LoadedEngine, prompt: str, temperature: float, tokens: int) -> list[Position]:
    """What would be drafted before each token of a plain run."""
    drafter = engine.drafters[0]
    settings = Settings(budget=0, temperature=temperature, seed=3, max_new_tokens=tokens)
    decoder = TreeDecoder(engine.target, engine.drafters, settings, engine.not_used)
    run = decoder.start(prompt)
    for _ in decoder.prefill(run):
        pass
    state, trees, begin = drafter.new_state(run.cache.capacity), [], len(run.token_ids)
    while run.finish_reason is None:
        with torch.inference_mode():
            draft = drafter.draft(
                state,
                Context(run.token_ids, run.cache.features, temperature),
                block_size=drafter.block_size,
                candidates=CEILING,
                temperature=DRAFT_TEMPERATURE,
            )
            rows = draft.top_log_probs, draft.top_token_ids, draft.child_rows
            trees.append(build_ddtree_tree(*rows, CEILING))
        decoder.step(run)
    text = run.token_ids[begin:]
    found = []
    for at, tree in enumerate(trees):
        children = dict(
            zip(
                zip(tree.parents.tolist()[1:], tree.token_ids.tolist(), strict=True),
                range(1, 64),
                strict=False,
            )
        )
        path: list[int] = [0]
        for token in text[at:]:
            if (node := children.get((path[-1], token))) is None:
                break
            path.append(node)
        found.append((tree.log_weights.numpy().copy(), path))
    return found


def replay(text: Sequence[Position], policy: Policy, learn: Learn, machine: Machine) -> tuple[int, float]:
    """(tokens, milliseconds) of a run along the text."""
    at, ms = 0, 0.0
    while at < len(text):
        log_weights, whole = text[at]
        budget, drafted = policy(log_weights)
        path = [node for node in whole if node <= budget]
        ms += machine.step(min(budget, len(log_weights)) + 1, drafted)
        learn(budget, path)
        at += min(len(path), len(text) - at)
    return len(text), ms


def automatic(text: Sequence[Position], machine: Machine) -> tuple[int, float]:
    auto = AutoBudget(WrittenTimes(machine))
    nodes: NDArray[np.float64] = np.empty(0)

    def policy(log_weights: NDArray[np.float64]) -> tuple[int, bool]:
        nonlocal nodes
        ceiling = min(auto.ceiling, CEILING)
        nodes = log_weights[:ceiling]
        return auto.choose("drafter" if ceiling else None, nodes, ceiling)[0], ceiling > 0

    def learn(budget: int, path: list[int]) -> None:
        auto.saw("drafter" if len(nodes) else None, nodes[:budget], path, UNTIMED)

    return replay(text, policy, learn, machine)


def compared(texts: Sequence[Sequence[Position]], machine: Machine) -> Iterator[str]:
    def fixed(budget: int) -> list[tuple[int, float]]:
        return [replay(text, lambda _: (budget, budget > 0), lambda *_: None, machine) for text in texts]

    runs = {str(budget): fixed(budget) for budget in (0, *FIXED)}
    runs["auto"] = [automatic(text, machine) for text in texts]
    rates = {
        name: 1e3 * sum(n for n, _ in found) / sum(ms for _, ms in found) for name, found in runs.items()
    }
    best = max(map(str, FIXED), key=rates.__getitem__)
    pairs = zip(runs["auto"], runs[best], strict=True)
    found = geometric_interval([[(n / ms) / (other / more)] for (n, ms), (other, more) in pairs])
    assert found is not None
    ends = "" if found.low is None else f" (95 % {found.low:.3f} to {found.high:.3f})"
    yield f"  {machine.name}: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    yield f"    auto / budget {best}: {found.mean:.3f}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with a field `prompt`")
    parser.add_argument("--count", type=int, default=10, help="of prompts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of a run (default: %(default)s)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    options = parser.parse_args()
    engine = load_engine()
    prompts = sample(read_prompts(options.prompts), options.count)
    print(f"auto_budget_replay: commit {commit()}, {len(prompts)} prompts, {options.tokens} new tokens")
    for temperature in options.temperatures:
        texts = [positions(engine, prompt.text, temperature, options.tokens) for prompt in prompts]
        print(f"T={temperature:g}, estimated tokens/s", flush=True)
        for machine in MACHINES:
            for line in compared(texts, machine):
                print(line, flush=True)


if __name__ == "__main__":
    main()
