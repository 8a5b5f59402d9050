"""A bench without a model: a made-up target and drafter, and a tiny model in transformers' place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour

from app.bench import rounds
from app.cli import main
from ddtree.engine import LoadedEngine

VOCAB = 8
STOP = 1  # the letter b
FLAGS = ["--new-tokens", "12", "--prompt-limit", "20"]


def rows(context: tuple[int, ...]) -> list[float]:
    """Logits that follow from the context, and often favour what the drafter drafts."""
    seed = sum(token * (i + 1) for i, token in enumerate(context))
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    logits[[5, 2, 6, 3][len(context) % 4]] += 1.5
    return logits.tolist()


def fake_engine() -> LoadedEngine:
    target: Any = FakeTarget(rows, VOCAB, stop=(STOP,), max_context=64)
    return LoadedEngine(target, (FakeDrafter(favour(5, 2, 6, 3)),), None)


def tiny_llama(vocab_size: int = VOCAB) -> Any:
    """A model of the fake's vocabulary that `generate` can be asked of."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig()
    return model


def prompts_file(folder: Path, count: int = 3) -> Path:
    """Prompts p0, p1, ... of two categories in turn; p0 has 30 tokens, the others a few."""
    texts = ["ac" * 15, *("acdg"[: 1 + i % 4] for i in range(1, count))]
    lines = [
        {"id": f"p{i}", "category": "odd" if i % 2 else "even", "prompt": text}
        for i, text in enumerate(texts)
    ]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


class Bench:
    """`ddtree bench` over the fakes, in this process; `out` is its folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.out = folder / "out"
        self.prompts = prompts_file(folder)
        self.patch = patch
        patch.setattr(rounds, "load_engine", lambda **flags: fake_engine())
        patch.setattr(rounds, "untouched_model", lambda *arguments: tiny_llama())

    def __call__(self, *flags: str) -> int:
        return main(["bench", "--out", str(self.out), "--prompts", str(self.prompts), *FLAGS, *flags])

    def results(self) -> Any:
        return json.loads((self.out / "results.json").read_text())

    def records(self) -> list[Any]:
        return [json.loads(line) for line in (self.out / "records.jsonl").read_text().splitlines()]

    def entry(self, lane: str, temperature: float = 0.0) -> Any:
        (found,) = (
            entry
            for entry in self.results()["entries"]
            if (entry["lane"], entry["temperature"]) == (lane, temperature)
        )
        return found
