"""Greedy tree decoding in float32 against the untouched model's generate, token for token.

For each prompt: transformers' own greedy text, then this project's at each budget and as a chain. A
difference is a fault unless a float64 pass shows the two tokens' logits within 1e-4; such cases are listed.
With --log, prompts that are done are not done again: the run can be stopped and taken up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import commit, machine, prompt_arguments, read_prompts

import ddtree
from app.bench.baselines import generate, untouched_model
from ddtree.compare import first_difference
from ddtree.settings import Settings

BUDGETS = (1, 7, 31, 63)


def lanes(budgets: tuple[int, ...], new_tokens: int) -> dict[str, Settings]:
    """What is compared: ddtree at each budget, and the chain."""
    trees = {f"ddtree {budget}": Settings(budget=budget, max_new_tokens=new_tokens) for budget in budgets}
    return {**trees, "chain": Settings(method="chain", max_new_tokens=new_tokens)}


class Comparison:
    """Both sides loaded once; the float64 model only when something differs."""

    def __init__(self) -> None:
        self.target = ddtree.load_target(dtype="float32")
        self.drafter = ddtree.load_drafter(target=self.target)
        self.reference = untouched_model(None, torch.float32, self.target.device)
        self._exact: Any = None

    def prompt(self, prompt: str, settings: dict[str, Settings], drafter: str = "dflash") -> dict[str, str]:
        """What differs for one prompt: lane -> "fault ..." or "near tie ..."; empty when all are equal."""
        found = {}
        expected: list[int] | None = None
        for lane, lane_settings in settings.items():
            decoder = ddtree.TreeDecoder(self.target, self.drafter, lane_settings.updated(drafter=drafter))
            tokens = [
                t for step in decoder.decode(prompt) if step.committed for t in step.committed.token_ids
            ]
            prompt_ids = decoder.trace().prompt.token_ids
            if expected is None:
                expected, _ = generate(
                    self.reference, prompt_ids, lane_settings.max_new_tokens, self.target.stop_token_ids
                )
            if tokens == expected:
                continue
            if self._exact is None:
                self._exact = untouched_model(None, torch.float64, self.target.device)
            difference = first_difference(self._exact, prompt_ids, tokens, expected)
            assert difference is not None
            kind = "near tie" if difference.near_tie else "fault"
            found[lane] = f"{kind} at {difference.index}: {difference}"
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    prompt_arguments(parser)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--log", type=Path, help="keep what is done here, and take it up again")
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts, arguments.every)
    settings = lanes(BUDGETS, arguments.new_tokens)
    done: dict[str, dict[str, str]] = {}
    if arguments.log and arguments.log.exists():
        done = dict(json.loads(line) for line in arguments.log.read_text().splitlines())
    comparison = Comparison()
    began = time.monotonic()
    for i, prompt in enumerate(prompts):
        if prompt not in done:
            done[prompt] = comparison.prompt(prompt, settings)
            if arguments.log:
                with arguments.log.open("a") as log:
                    log.write(json.dumps([prompt, done[prompt]]) + "\n")
        shown = "; ".join(f"{lane}: {text}" for lane, text in done[prompt].items()) or "equal"
        print(f"[{i + 1}/{len(prompts)}, {time.monotonic() - began:.0f} s] {shown}", flush=True)
    ties = sum(any("near tie" in text for text in done[prompt].values()) for prompt in prompts)
    faults = sum(any("fault" in text for text in done[prompt].values()) for prompt in prompts)
    print(
        f"greedy float32, {len(prompts)} prompts, {arguments.new_tokens} new tokens, {', '.join(settings)}: "
        f"{len(prompts) - ties - faults} equal, {ties} near ties, {faults} faults"
    )
    print(f"commit {commit()}; {machine()}")
    return 1 if faults or ties > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
