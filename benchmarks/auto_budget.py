"""Does the budget chosen by the program keep up with the best one?

auto      budget "auto" in every step, against the best of the fixed budgets 7, 15, 31, 63
whatif    the budget that the what-if curve recommends (ddtree/whatif.py) from runs on some prompts, against
          the best of the measured budgets 3, 7, 15, 23, 31, 47, 63 on others

Every prompt is decoded by all budgets in turn, which goes first rotates. The best budget is chosen in
hindsight, by the tokens a second pooled over the very runs that it is compared in. Ratios pair runs of one
prompt and round; their 95 % interval is a bootstrap over prompts and rounds. Tokens a second are by the time
inside steps. With --log, runs that are done are not done again: it can be stopped and taken up.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from common import commit, machine

import ddtree
from app.bench.intervals import geometric_interval
from app.bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts, sample
from ddtree.engine import load_engine
from ddtree.settings import Settings
from ddtree.trace import Step
from ddtree.whatif import budget_curve

FIXED = (7, 15, 31, 63)
MEASURED = (3, 7, 15, 23, 31, 47, 63)
WARM_UP_TOKENS = 16

Budget = int | Literal["auto"]
Speeds = dict[str, list[list[tuple[int, float]]]]
"""By lane [prompt][round]: committed tokens, and the seconds inside steps."""


class Runs:
    """Decodes what the log does not have yet."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._engine = load_engine(threads=options.threads)
        self._tokens: int = options.tokens
        self._log: Path | None = options.log
        self._done: dict[str, Any] = {}
        self._warm: set[Budget] = set()
        if self._log is not None and self._log.exists():
            for line in self._log.read_text(encoding="utf-8").splitlines():
                key, found = json.loads(line)
                self._done[key] = found

    def decode(self, prompt: str, budget: Budget, temperature: float, seed: int, tokens: int) -> list[Step]:
        settings = Settings(budget=budget, temperature=temperature, seed=seed, max_new_tokens=tokens)
        engine = self._engine
        decoder = ddtree.TreeDecoder(engine.target, engine.drafters, settings, engine.not_used)
        return list(decoder.decode(prompt))

    def warm_up(self, budgets: Sequence[Budget], prompt: str) -> None:
        for budget in set(budgets) - self._warm:
            self.decode(prompt, budget, 0.0, 0, WARM_UP_TOKENS)
            self._warm.add(budget)

    def speed(
        self, part: str, lane: str, budget: Budget, prompt: BenchPrompt, temperature: float, seed: int
    ) -> tuple[int, float]:
        key = f"{part} {lane} {budget} T={temperature:g} {self._tokens} {prompt.id} {seed}"
        if key not in self._done:
            self.warm_up([budget], prompt.text)
            self._keep(key, pooled(self.decode(prompt.text, budget, temperature, seed, self._tokens)))
        committed, seconds = self._done[key]
        return committed, seconds

    def _keep(self, key: str, found: Any) -> None:
        self._done[key] = found
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps([key, found]) + "\n")

    def lanes(
        self,
        part: str,
        lanes: dict[str, Budget],
        prompts: Sequence[BenchPrompt],
        temperature: float,
        rounds: int,
    ) -> Speeds:
        """Every lane on every prompt, `rounds` times, in turn."""
        speeds: Speeds = {lane: [[] for _ in prompts] for lane in lanes}
        names = list(lanes)
        for repeat in range(rounds):
            for i, prompt in enumerate(prompts):
                gc.collect()
                first = (i + repeat) % len(names)
                for lane in names[first:] + names[:first]:
                    found = self.speed(part, lane, lanes[lane], prompt, temperature, repeat)
                    speeds[lane][i].append(found)
                print(f"  {part}, T={temperature:g}: round {repeat + 1}, prompt {prompt.id}", flush=True)
        return speeds

    def recommended(
        self, prompts: Sequence[BenchPrompt], temperature: float
    ) -> tuple[int | None, list[tuple[int, float]]]:
        """What-if's best budget over these prompts, and its tokens a second at the measured ones. The
        contexts are those of the largest budget; the others give the times of their row counts."""
        key = f"recommended T={temperature:g} {self._tokens} " + " ".join(prompt.id for prompt in prompts)
        if key in self._done:
            best, estimate = self._done[key]
            return best, estimate
        steps: list[Step] = []
        self.warm_up(MEASURED, prompts[0].text)
        for i, prompt in enumerate(prompts):
            first = i % len(MEASURED)
            for budget in MEASURED[first:] + MEASURED[:first]:
                steps += self.decode(prompt.text, budget, temperature, 0, self._tokens)
            print(f"  choosing, T={temperature:g}: prompt {prompt.id}", flush=True)
        curve = budget_curve([step for step in steps if step.budget == MEASURED[-1]], steps)
        speeds = [
            (point.budget, curve.tokens_per_second(point) or 0.0)
            for point in curve.points
            if point.budget in MEASURED
        ]
        self._keep(key, (curve.best, speeds))
        return curve.best, speeds


def pooled(steps: Sequence[Step]) -> tuple[int, float]:
    committed = sum(len(step.committed.token_ids) for step in steps if step.committed)
    return committed, sum(step.timing_ms.total for step in steps if step.timing_ms) / 1e3


def tokens_per_second(runs: Sequence[Sequence[tuple[int, float]]]) -> float:
    flat = [run for repeats in runs for run in repeats]
    return sum(committed for committed, _ in flat) / sum(seconds for _, seconds in flat)


def verdict(speeds: Speeds, lane: str, least: float) -> Iterator[str]:
    """The lane against the best of the others, and whether the interval reaches `least`."""
    rates = {name: tokens_per_second(runs) for name, runs in speeds.items()}
    best = max((name for name in rates if name != lane), key=lambda name: rates[name])
    yield "  tokens/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    ratios = [
        [(mine[0] / mine[1]) / (other[0] / other[1]) for mine, other in zip(*pair, strict=True)]
        for pair in zip(speeds[lane], speeds[best], strict=True)
    ]
    found = geometric_interval(ratios)
    assert found is not None
    pairs = sum(len(repeats) for repeats in ratios)
    if found.high is None:
        yield f"  {lane} / budget {best}: {found.mean:.3f}; one prompt has no interval"
        return
    word = "reached" if found.high >= least else "missed"
    yield (
        f"  {lane} / budget {best}: {found.mean:.3f} (95 % {found.low:.3f} to {found.high:.3f}) over {pairs} "
        f"pairs; an interval that includes or lies above {least}: {word}"
    )


def auto(runs: Runs, options: argparse.Namespace, temperature: float) -> Iterator[str]:
    lanes: dict[str, Budget] = {"auto": "auto", **{str(budget): budget for budget in FIXED}}
    prompts = sample(read_prompts(options.prompts), options.count)
    speeds = runs.lanes("auto", lanes, prompts, temperature, options.rounds)
    yield f"auto, T={temperature:g}, {len(prompts)} prompts, {options.tokens} new tokens"
    yield from verdict(speeds, "auto", 0.97)


def whatif(runs: Runs, options: argparse.Namespace, temperature: float) -> Iterator[str]:
    given = read_prompts(options.prompts)
    choosing = sample(given, options.choosing)
    others = sample([prompt for prompt in given if prompt not in choosing], options.count)
    best, estimate = runs.recommended(choosing, temperature)
    yield f"what-if, T={temperature:g}, chosen on {len(choosing)} prompts, measured on {len(others)} others"
    yield "  estimated tokens/s: " + ", ".join(f"{b} {rate:.1f}" for b, rate in estimate)
    if best is None:
        yield "  no budget is recommended: too few steps were timed; use more --tokens"
        return
    lanes: dict[str, Budget] = {f"recommended {best}": best, **{str(budget): budget for budget in MEASURED}}
    rounds = max(options.rounds, -(-20 // len(others)))  # 20 pairs at least
    speeds = runs.lanes("whatif", lanes, others, temperature, rounds)
    yield from verdict(speeds, f"recommended {best}", 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["auto", "whatif"], help="auto, whatif (default: both)")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with a field `prompt`")
    parser.add_argument("--count", type=int, default=10, help="prompts measured (default: %(default)s)")
    parser.add_argument("--choosing", type=int, default=4, help="other prompts, for what-if's choice")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of each prompt, at least (default: 1)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--log", type=Path, help="keep what is done here, and take it up again")
    options = parser.parse_args()
    known = {"auto": auto, "whatif": whatif}
    for part in options.parts:
        if part not in known:
            parser.error(f"there is no part {part!r}; take auto, whatif or both")
    runs = Runs(options)
    print(f"auto_budget: {machine()}, commit {commit()}", flush=True)
    for part in options.parts:
        for temperature in options.temperatures:
            for line in known[part](runs, options, temperature):
                print(line, flush=True)


if __name__ == "__main__":
    main()
