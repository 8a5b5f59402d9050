"""Whole steps on a GPU: graph replay against the same step run operator by operator, checked and measured.

The target has the shape of Qwen3-8B, the drafter five layers and blocks of 16; both are random, in bfloat16.
`gpu_check.py` calls this. In small on a CPU, a graph is an object that runs its step again.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

STAGES = ("draft", "build", "coins", "verify", "sample", "commit")
STEPS = 20
PROMPT_TOKENS = 512

TARGET = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}
SMALL_TARGET = {
    **TARGET,
    "vocab_size": 997,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


class RunAgain:
    """A graph's stand-in where there is no CUDA."""

    def __init__(self, step: Callable[[], Any], restore: Callable[[], None]) -> None:
        self._step = step
        self.output = step()
        restore()

    def replay(self) -> None:
        self.output = self._step()


def random_pair(device: str) -> tuple[Any, Any]:
    """Target and drafter, never read from a file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from ddtree import attention
    from ddtree.drafters.dflash import DFlashDrafter, DFlashModel
    from ddtree.drafters.dflash_config import DFlashConfig
    from ddtree.loading import make_target

    attention.register()
    sizes = TARGET if device == "cuda" else SMALL_TARGET
    tokenizer = SimpleNamespace(eos_token_id=0, model_max_length=0)
    torch.manual_seed(1)
    with torch.device(device):
        config = AutoConfig.for_model("qwen3", **sizes)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.ATTENTION, dtype=torch.bfloat16
        )
    target = make_target(model, tokenizer, "random")
    target.native = None
    layers = sizes["num_hidden_layers"]
    config = DFlashConfig(
        block_size=16,
        mask_token_id=4,
        target_layer_ids=tuple(sorted({1, layers // 4, layers // 2, 3 * layers // 4, layers - 1})),
        num_layers=5,
        hidden_size=sizes["hidden_size"],
        num_heads=sizes["num_attention_heads"],
        num_key_heads=sizes["num_key_value_heads"],
        head_dim=sizes["head_dim"],
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_context=sizes["max_position_embeddings"],
        vocab_size=sizes["vocab_size"],
        num_target_layers=layers,
    )
    with torch.device(device):
        drafter_model = DFlashModel(config, sizes["intermediate_size"]).to(torch.bfloat16)
        for weight in drafter_model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.02)
    drafter_model.frequencies = drafter_model.frequencies.cpu()  # as a loaded drafter has them
    return target, DFlashDrafter("random", config, drafter_model, target)


@contextmanager
def no_synchronisation(device: str) -> Iterator[None]:
    """torch raises where it would wait for the device."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Bench:
    """A run behind a random prompt that can be put back to its first step."""

    def __init__(self, device: str, pair: tuple[Any, Any]) -> None:
        from ddtree.graphs import CudaCapture, StepRunner
        from ddtree.static_step import StaticState, StaticStep

        self.device = device
        self.target, drafter = pair
        self.prompt = torch.randint(5, self.target.vocab_size, (PROMPT_TOKENS,)).tolist()
        self.state = StaticState(self.target, drafter, PROMPT_TOKENS + 1024)
        self.step = StaticStep(self.target, self.state)
        self.eager = StepRunner(self.step, None)
        self.graph = StepRunner(self.step, CudaCapture() if device == "cuda" else RunAgain)
        self.restart()

    @torch.inference_mode()
    def restart(self) -> None:
        self.state.clear()
        for _ in self.target.prefill(self.state.cache, self.prompt[:-1]):
            pass
        self.state.attach(self.prompt[-1], PROMPT_TOKENS - 1, 0, 7)

    def plan(self, **changes: Any) -> Any:
        from ddtree.settings import Settings
        from ddtree.static_step import plan_step

        settings = Settings(**{"drafter": "dflash", "block_size": 16, **changes})
        plan, budget = plan_step(settings, self.target.vocab_size, padded=True)
        with torch.inference_mode():
            self.state.budget.fill_(budget)
        self.step.prepare(plan)
        return plan

    def check(self, name: str, plan: Any) -> str:
        """Replays give, to the bit, what the operators give; neither waits for the device."""
        from ddtree.static_step import StepOutput

        outputs: dict[str, list[list[torch.Tensor]]] = {}
        for way, runner in (("eager", self.eager), ("graph", self.graph)):
            self.restart()
            runner(plan)  # captures, and sets libraries up
            self.restart()
            with no_synchronisation(self.device):
                outputs[way] = [[part.clone() for part in runner(plan)] for _ in range(4)]
        for index, (one, other) in enumerate(zip(outputs["eager"], outputs["graph"], strict=True)):
            for field, mine, theirs in zip(StepOutput._fields, one, other, strict=True):
                assert mine.equal(theirs), f"{name}, step {index}: {field} of the replay is not eager's"
        return f"{name}: 4 replays equal eager to the bit, no synchronisation"

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """The median time of a step, one after the other on the device's own clock."""
        self.restart()
        for _ in range(3):
            call()
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e3
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))

    @torch.inference_mode()
    def stages(self, plan: Any) -> dict[str, float]:
        """Median milliseconds of each stage, operator by operator."""
        taken: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self.restart()
        for _ in range(STEPS if self.device == "cuda" else 2):
            clock = _Clock(self.device)
            log_probs, token_ids, _ = self.step.draft(plan)
            clock.mark("draft")
            fields, retrieve, visible, _ = self.step.build(plan, log_probs, token_ids)
            clock.mark("build")
            drawn = self.step.coins(plan)
            clock.mark("coins")
            logits, features = self.step.verify(fields, visible)
            clock.mark("verify")
            walk = self.step.sample(plan, logits, fields, retrieve, drawn)
            clock.mark("sample")
            self.step.commit(plan, walk, features)
            clock.mark("commit")
            for stage, ms in clock.times().items():
                taken[stage].append(ms)
        return {stage: statistics.median(times) for stage, times in taken.items()}


class _Clock:
    def __init__(self, device: str) -> None:
        self._on_cuda = device == "cuda"
        self._marks = [("", self._now())]

    def _now(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self, stage: str) -> None:
        self._marks.append((stage, self._now()))

    def times(self) -> dict[str, float]:
        if self._on_cuda:
            torch.cuda.synchronize()
        pairs = itertools.pairwise(self._marks)
        return {
            stage: before.elapsed_time(at) if self._on_cuda else (at - before) * 1e3
            for (_, before), (stage, at) in pairs
        }


def steps(device: str) -> Iterator[str]:
    """Lines of the table."""
    bench = Bench(device, random_pair(device))
    plain = bench.plan(method="autoregressive")
    yield bench.check("step, autoregressive", plain)
    alone = {way: bench.milliseconds(lambda r=r: r(plain)) for way, r in _ways(bench)}
    yield f"step, autoregressive: eager {alone['eager']:.2f} ms, graph {alone['graph']:.2f} ms"
    for changes in ({"budget": 15}, {"budget": 63}, {"budget": 15, "temperature": 1.0}):
        name = "step, " + ", ".join(f"{key} {value}" for key, value in changes.items())
        plan = bench.plan(**changes)
        yield bench.check(name, plan)
        took = {way: bench.milliseconds(lambda r=r, p=plan: r(p)) for way, r in _ways(bench)}
        yield (
            f"{name}: eager {took['eager']:.2f} ms, graph {took['graph']:.2f} ms: "
            f"{took['eager'] / took['graph']:.1f} times; "
            f"{took['graph'] / alone['graph']:.2f} autoregressive steps"
        )
        stages = bench.stages(plan)
        yield f"{name}, eager by stage: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in stages.items())


def _ways(bench: Bench) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("eager", bench.eager), ("graph", bench.graph)
