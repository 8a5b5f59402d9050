"""Decoding speed on the default model, every figure beside what it is compared with, in one run.

repacked   this project's autoregressive loop on repacked weights against transformers' generate (sdpa,
           default cache, no streamer), same dtype and threads, both warm, prompt by prompt in turn
lanes      drafters, methods and budgets against the autoregressive loop, prompt by prompt in turn
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

from common import (
    commit,
    greedy_generate,
    machine,
    prompt_arguments,
    ratio_interval,
    read_prompts,
    untouched_model,
)

import ddtree
from ddtree import _kernels
from ddtree.engine import LoadedEngine
from ddtree.settings import Settings
from ddtree.trace import Summary


def decode(engine: LoadedEngine, prompt: str, settings: Settings) -> tuple[Summary, list[int]]:
    """One run: its summary, and the prompt's token ids."""
    decoder = ddtree.TreeDecoder(engine.target, engine.drafters, settings)
    for _ in decoder.decode(prompt):
        pass
    trace = decoder.trace()
    assert trace.summary is not None
    return trace.summary, trace.prompt.token_ids


def repacked(engine: LoadedEngine, prompts: list[str], new_tokens: int) -> None:
    """Tokens a second of whole runs, prefill included on both sides."""
    reference = untouched_model(engine.target.dtype)
    settings = Settings(method="autoregressive", max_new_tokens=new_tokens)
    stop = engine.target.stop_token_ids
    _, ids = decode(engine, prompts[0], settings)
    greedy_generate(reference, ids, 16, stop)
    ratios, ours_rate, theirs_rate = [], [], []
    for prompt in prompts:
        summary, ids = decode(engine, prompt, settings)
        ours = summary.committed / summary.wall_s
        began = time.perf_counter()
        text = greedy_generate(reference, ids, new_tokens, stop)
        theirs = len(text) / (time.perf_counter() - began)
        ratios.append(ours / theirs)
        ours_rate.append(ours)
        theirs_rate.append(theirs)
        print(f"  {len(ratios)}/{len(prompts)}: {ours:.1f} against {theirs:.1f} tokens/s", flush=True)
    mean, low, high = ratio_interval(ratios)
    dtype = str(engine.target.dtype).removeprefix("torch.")
    count = len(prompts)
    print(
        f"autoregressive on repacked weights against transformers' generate, {dtype}, {count} prompts x "
        f"{new_tokens} tokens: {sum(ours_rate) / count:.1f} against {sum(theirs_rate) / count:.1f} tokens/s, "
        f"ratio {mean:.2f} (95 % {low:.2f} to {high:.2f})"
    )


def lanes(engine: LoadedEngine, prompts: list[str], new_tokens: int, temperature: float) -> None:
    """A table of lanes: tokens/s inside steps, ratio to the autoregressive lane, tau."""
    base = {"temperature": temperature, "seed": 1, "max_new_tokens": new_tokens}
    table = {"autoregressive": Settings(method="autoregressive", **base)}
    for drafter in engine.drafters:
        table[f"{drafter.kind} chain 7"] = Settings(method="chain", budget=7, drafter=drafter.kind, **base)
        for budget in (7, 15, 31, 63):
            table[f"{drafter.kind} ddtree {budget}"] = Settings(budget=budget, drafter=drafter.kind, **base)
    rates: dict[str, list[float]] = defaultdict(list)
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for i, prompt in enumerate(prompts):
        for lane, settings in table.items():
            summary, _ = decode(engine, prompt, settings)
            rates[lane].append(summary.tokens_per_second or 0.0)
            totals[lane][0] += summary.committed
            totals[lane][1] += summary.steps
        print(f"  {i + 1}/{len(prompts)}", flush=True)
    print(f"temperature {temperature:g}, {len(prompts)} prompts x {new_tokens} tokens")
    print(f"{'lane':24} {'tokens/s':>9} {'ratio':>6} {'95 %':>14} {'tau':>6}")
    for lane, values in rates.items():
        pairs = [a / b for a, b in zip(values, rates["autoregressive"], strict=True)]
        mean, low, high = ratio_interval(pairs)
        tau = totals[lane][0] / totals[lane][1]
        span = f"{low:.2f} to {high:.2f}"
        print(f"{lane:24} {sum(values) / len(values):9.1f} {mean:6.2f} {span:>14} {tau:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["repacked", "lanes"], help="repacked, lanes")
    prompt_arguments(parser)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="torch threads; default: what the product uses")
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts, arguments.every)
    engine = ddtree.load_engine(dtype=arguments.dtype, threads=arguments.threads)
    print(f"commit {commit()}; {machine()}; kernels on {_kernels.instruction_set()}")
    if "repacked" in arguments.parts:
        repacked(engine, prompts, arguments.new_tokens)
    if "lanes" in arguments.parts:
        for temperature in arguments.temperature:
            lanes(engine, prompts, arguments.new_tokens, temperature)


if __name__ == "__main__":
    main()
