"""The features stage: the target's tapped hidden states of every document, in one memory-mapped file.

A folder holds `documents.npz` (token ids, offsets, starts, temperatures), `features.bin` (bfloat16
[tokens, taps * H], in document order) and `done.json` (how many documents are complete). It is filled in
batches; a run that is killed loses the batch at work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddtree.storage import Progress
from ddtree.training.files import write_atomically
from ddtree.training.texts import Document

_SORTED = 1024
"""Documents among which a batch's are picked by length: little padding, and the done ones stay a prefix."""


class FeatureCache:
    """Documents and the hidden states of their tokens, read where they lie."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError when the folder is not one that the features stage made."""
        file = folder / "documents.npz"
        if not file.is_file():
            raise ValueError(f"{folder} holds no documents.npz; run the features stage first")
        with np.load(file) as arrays:
            self.token_ids: np.ndarray[Any, Any] = arrays["token_ids"]  # int32 [tokens]
            self.offsets: np.ndarray[Any, Any] = arrays["offsets"]  # int64 [documents + 1]
            self.starts: np.ndarray[Any, Any] = arrays["starts"]  # int32 [documents]: tokens of the prompt
            self.temperatures: np.ndarray[Any, Any] = arrays["temperatures"]  # float32 [documents]
            self.taps: tuple[int, ...] = tuple(int(tap) for tap in arrays["taps"])
            self.hidden_size = int(arrays["hidden_size"])
        self.folder = folder
        shape = (len(self.token_ids), len(self.taps) * self.hidden_size)
        mapped = np.memmap(folder / "features.bin", dtype=np.int16, mode="r+", shape=shape)
        self._features = torch.from_numpy(mapped).view(torch.bfloat16)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def done(self) -> int:
        """Documents whose features are there: the first ones."""
        file = self.folder / "done.json"
        return int(json.loads(file.read_text())["documents"]) if file.is_file() else 0

    def length(self, document: int) -> int:
        return int(self.offsets[document + 1] - self.offsets[document])

    def tokens(self, document: int) -> torch.Tensor:
        """int64 [n]."""
        span = slice(self.offsets[document], self.offsets[document + 1])
        return torch.from_numpy(self.token_ids[span].astype(np.int64))

    def features(self, document: int) -> torch.Tensor:
        """bfloat16 [n, taps * H], a view of the file."""
        return self._features[int(self.offsets[document]) : int(self.offsets[document + 1])]

    def store(self, documents: Sequence[int], states: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
        """states: per tap [B, T, H]; the rows past a document's length are padding."""
        for row, (document, length) in enumerate(zip(documents, lengths, strict=True)):
            rows = self.features(document).view(length, len(self.taps), self.hidden_size)
            for tap, state in enumerate(states):
                rows[:, tap].copy_(state[row, :length])

    def finish(self, done: int) -> None:
        """Notes that the first `done` documents are complete. The file is mapped: what was stored outlives
        this process."""
        write_atomically(self.folder / "done.json", json.dumps({"documents": done}).encode())


def create(folder: Path, documents: Sequence[Document], taps: Sequence[int], hidden_size: int) -> None:
    """An empty cache for these documents."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [len(document.token_ids) for document in documents]
    arrays: dict[str, Any] = {
        "token_ids": np.concatenate([np.array(one.token_ids, dtype=np.int32) for one in documents]),
        "offsets": np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        "starts": np.array([one.start for one in documents], dtype=np.int32),
        "temperatures": np.array([one.temperature for one in documents], dtype=np.float32),
        "taps": np.array(taps, dtype=np.int32),
        "hidden_size": np.array(hidden_size),
    }
    with (folder / "features.bin").open("wb") as file:
        file.truncate(sum(lengths) * len(taps) * hidden_size * 2)
    unfinished = folder / ".documents.npz"
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
    unfinished.rename(folder / "documents.npz")


@torch.inference_mode()
def fill(
    cache: FeatureCache,
    model: Any,
    batch_tokens: int,
    progress: Progress,
    should_stop: Callable[[], bool],
    wanted: int | None = None,
) -> bool:
    """Computes the features that are not there yet, of the first `wanted` documents (None: all); whether it
    came to the end. model: a plain transformers causal LM. batch_tokens: padded tokens a pass."""
    end = len(cache) if wanted is None else min(wanted, len(cache))
    layers = [tap + 1 for tap in cache.taps]
    while cache.done < end:
        first = cache.done
        group = sorted(range(first, min(first + _SORTED, end)), key=cache.length)
        finished = 0
        for batch in _batches(group, cache, batch_tokens):
            if should_stop():
                return False
            lengths = [cache.length(document) for document in batch]
            ids = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
            for row, document in enumerate(batch):
                ids[row, : lengths[row]] = cache.tokens(document)
            output = model.get_decoder()(
                input_ids=ids.to(model.device), use_cache=False, output_hidden_states=layers
            )
            cache.store(batch, [output.hidden_states[layer].cpu() for layer in layers], lengths)
            finished += len(batch)
            progress("features", (first + finished) / end)
        cache.finish(min(first + _SORTED, end))
    return True


def _batches(group: Sequence[int], cache: FeatureCache, batch_tokens: int) -> list[list[int]]:
    """Splits documents that are sorted by length where the padded batch would exceed `batch_tokens`."""
    batches: list[list[int]] = [[]]
    for document in group:
        if batches[-1] and (len(batches[-1]) + 1) * cache.length(document) > batch_tokens:
            batches.append([])
        batches[-1].append(document)
    return [batch for batch in batches if batch]
