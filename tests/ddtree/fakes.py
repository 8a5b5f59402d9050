"""A target and a drafter whose numbers a test writes down: for the decode loop's own logic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ddtree.autobudget import StepTimes
from ddtree.drafters.base import Context, Draft, DraftFault

Rows = Callable[[tuple[int, ...]], Sequence[float]]


def word_tokenizer(vocab_size: int, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Token i is written as a letter: a, b, c, ..."""
    backend = Tokenizer(models.BPE({chr(ord("a") + i): i for i in range(vocab_size)}, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.chat_template = chat_template
    return tokenizer


class FakeCache:
    """Keeps (token id, position) for each row, so that a test sees what the commit kept."""

    def __init__(self, capacity: int, taps: Sequence[int]) -> None:
        self.capacity = capacity
        self.length = 0
        self.rows: list[tuple[int, int]] = []
        self.tail: list[tuple[int, int]] = []
        self.features = torch.zeros(capacity, len(taps)) if taps else None


class FakeTarget:
    """Logits of a row are `rows(the tokens it sees)`: a wrong mask, position or commit changes the text."""

    def __init__(self, rows: Rows, vocab_size: int, stop: Sequence[int] = (), max_context: int = 512) -> None:
        self.rows = rows
        self.vocab_size = vocab_size
        self.stop_token_ids = tuple(stop)
        self.max_context = max_context
        self.tokenizer = word_tokenizer(vocab_size)
        self.name, self.device, self.dtype = "fake", torch.device("cpu"), torch.float32
        self.num_layers, self.hidden_size, self.notes = 1, 1, []
        self.model = SimpleNamespace()
        self.native = None
        self.times = StepTimes()
        self.passes: list[dict[str, Any]] = []

    def new_cache(self, capacity: int, taps: Sequence[int] = ()) -> FakeCache:
        return FakeCache(capacity, taps)

    def prefill(self, cache: FakeCache, token_ids: Sequence[int], chunk: int = 2) -> Iterator[int]:
        for begin in range(0, len(token_ids), chunk):
            part = token_ids[begin : begin + chunk]
            cache.rows += [(token, begin + i) for i, token in enumerate(part)]
            cache.length = len(cache.rows)
            yield cache.length

    def verify(
        self, cache: FakeCache, token_ids: torch.Tensor, positions: torch.Tensor, visibility: torch.Tensor
    ) -> torch.Tensor:
        cache.tail = list(zip(token_ids.tolist(), positions.tolist(), strict=True))
        self.passes.append({"positions": positions.tolist(), "length": cache.length})
        logits = []
        for i in range(len(cache.tail)):
            seen = [cache.tail[j] for j in range(len(cache.tail)) if visibility[i, j]]
            context = sorted(cache.rows + seen, key=lambda row: row[1])
            assert [position for _, position in context] == list(range(len(context))), context
            logits.append(torch.tensor(self.rows(tuple(token for token, _ in context)), dtype=torch.float32))
        return torch.stack(logits)

    def commit(self, cache: FakeCache, rows: Sequence[int]) -> None:
        cache.rows += [cache.tail[row] for row in rows]
        cache.length = len(cache.rows)


class FakeDrafter:
    """Drafts `log_probs` [L, V] whatever the context: every row lists the whole vocabulary."""

    name, kind, taps, max_context = "fake", "dflash", (), None

    def __init__(self, log_probs: torch.Tensor, fail_at: int | None = None) -> None:
        self.log_probs = log_probs
        self.block_size = log_probs.shape[0] + 1
        self.fail_at = fail_at
        self.calls: list[dict[str, Any]] = []

    def new_state(self, capacity: int) -> dict[str, int]:
        return {"capacity": capacity}

    def draft(
        self, state: Any, context: Context, *, block_size: int, candidates: int, temperature: float
    ) -> Draft:
        self.calls.append({"block_size": block_size, "candidates": candidates, "root": context.token_ids[-1]})
        if self.fail_at is not None and len(self.calls) > self.fail_at:
            raise DraftFault("the drafter's row of depth 2 is NaN at token 3", 2)
        rows = self.log_probs[: block_size - 1]
        order = torch.sort(rows, dim=1, descending=True, stable=True)
        return Draft(
            order.values[:, :candidates].contiguous(),
            order.indices[:, :candidates].contiguous(),
            None,
            "dflash",
            temperature,
            rows,
        )


def favour(*favourites: int, vocab_size: int = 8) -> torch.Tensor:
    """Log-probabilities [len(favourites), V]: most of each row's mass on one token."""
    logits = torch.zeros(len(favourites), vocab_size)
    for row, token in enumerate(favourites):
        logits[row, token] = 3.0
    return torch.log_softmax(logits, dim=1)


def follow(text: Sequence[int], vocab_size: int = 8) -> Rows:
    """A target that continues with `text` after a prompt of one token, whatever it sees (7 afterwards)."""

    def rows(context: tuple[int, ...]) -> list[float]:
        at = len(context) - 1
        logits = [0.0] * vocab_size
        logits[text[at] if at < len(text) else 7] = 5.0
        return logits

    return rows
