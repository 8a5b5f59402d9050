"""Batched generation: many sequences side by side, rows of a preallocated cache, finished ones dropped.

Prompts are padded on the left, so that all sequences grow at the same column; the mask hides the padding and
positions count from each prompt's own first token. A finished sequence's row is dropped at once: its place in
the cache is taken by the last row, and a pass costs what the unfinished ones cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class _BatchLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values [rows, heads, columns, D], allocated when the first pass shows their shape;
    `update` writes the columns of a pass and returns views."""

    keys: torch.Tensor
    values: torch.Tensor
    is_sliding = False

    def __init__(self, owner: BatchCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner = owner
        self.is_initialized = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, columns = self.owner.rows, self.owner.columns
        self.keys = key_states.new_zeros(rows, key_states.shape[1], columns, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], columns, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, start, end = self.owner.rows, self.owner.length, self.owner.length + key_states.shape[2]
        self.keys[:rows, :, start:end] = key_states
        self.values[:rows, :, start:end] = value_states
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return self.owner.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length + query_length, 0


class BatchCache(Cache):
    """`rows` sequences in use, `length` columns filled, the same for all."""

    layers: list[Any]

    def __init__(self, layers: int, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self.length = 0
        super().__init__(layers=[_BatchLayer(self) for _ in range(layers)])

    def keep(self, rows: torch.Tensor) -> None:
        """Drops all sequences but `rows`, ascending indices of those in use. Only moved rows are copied."""
        target = torch.arange(len(rows))
        moved = rows != target
        for layer in self.layers:
            for tensor in (layer.keys, layer.values):
                held = tensor[rows[moved], :, : self.length]
                tensor[target[moved], :, : self.length] = held
        self.rows = len(rows)


@torch.inference_mode()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    top_p: float,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    generator: torch.Generator,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[int]] | None:
    """The answers to `prompts` (token ids), a stop token included where one ended it; None when stopped.

    temperatures: of each prompt, 0: the likeliest token. top_p acts on temperatures above 0. Sequences whose
    prompts differ in length share a batch best when they are close.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    longest = max(len(prompt) for prompt in prompts)
    device = model.device
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    seen = torch.zeros(len(prompts), longest + max_new_tokens, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        seen[row, longest - len(prompt) :] = 1
    heat = torch.tensor(temperatures, dtype=torch.float32)
    alive = torch.arange(len(prompts))
    cache = BatchCache(
        model.config.get_text_config().num_hidden_layers, len(prompts), longest + max_new_tokens
    )
    positions = (seen[:, :longest].cumsum(1) - 1).clamp(min=0)
    for _ in range(max_new_tokens):
        if should_stop():
            return None
        columns = cache.length + ids.shape[1]
        logits = model(
            input_ids=ids.to(device),
            attention_mask=seen[:, :columns].to(device),
            position_ids=positions.to(device),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.length = columns
        tokens = draw(logits.float().cpu(), heat, top_p, generator)
        for row, token in zip(alive.tolist(), tokens.tolist(), strict=True):
            answers[row].append(token)
        going = ~torch.isin(tokens, torch.tensor(stop_token_ids, dtype=torch.int64))
        kept = going.nonzero().flatten()
        if len(kept) == 0:
            break
        if len(kept) < len(alive):
            cache.keep(kept)
            alive, seen, heat = alive[kept], seen[kept], heat[kept]
        ids = tokens[kept][:, None]
        positions = positions[kept, -1:] + 1
    return answers


def draw(
    logits: torch.Tensor, temperatures: torch.Tensor, top_p: float, generator: torch.Generator
) -> torch.Tensor:
    """int64 [n]: a token of each row [n, V] at its temperature [n], from the shortest prefix of the sorted
    distribution that reaches top_p."""
    likeliest = logits.argmax(-1)
    warm = temperatures > 0
    if not warm.any():
        return likeliest
    probs = torch.softmax(logits[warm] / temperatures[warm, None], dim=-1)
    if top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
    likeliest[warm] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return likeliest
