"""This project's autoregressive loop on repacked weights against transformers' generate (sdpa, default cache,
no streamer), same dtype and threads, both warm, prompt by prompt in turn. For drafters, methods and budgets:
`ddtree bench`.
"""

from __future__ import annotations

import argparse
import time

from common import commit, machine, prompt_arguments, ratio_interval, read_prompts

import ddtree
from app.bench.baselines import generate, untouched_model
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
    reference = untouched_model(None, engine.target.dtype, engine.target.device)
    settings = Settings(method="autoregressive", max_new_tokens=new_tokens)
    stop = engine.target.stop_token_ids
    _, ids = decode(engine, prompts[0], settings)
    generate(reference, ids, 16, stop)
    ratios, ours_rate, theirs_rate = [], [], []
    for prompt in prompts:
        summary, ids = decode(engine, prompt, settings)
        ours = summary.committed / summary.wall_s
        began = time.perf_counter()
        text, _ = generate(reference, ids, new_tokens, stop)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    prompt_arguments(parser)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="torch threads; default: what the product uses")
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts, arguments.every)
    engine = ddtree.load_engine(dtype=arguments.dtype, threads=arguments.threads)
    print(f"commit {commit()}; {machine()}; kernels on {_kernels.instruction_set()}")
    repacked(engine, prompts, arguments.new_tokens)


if __name__ == "__main__":
    main()
