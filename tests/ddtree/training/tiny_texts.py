"""Documents and caches of the tiny targets, made without one."""

from __future__ import annotations

from pathlib import Path

import torch

from ddtree.training.features import FeatureCache, create
from ddtree.training.texts import Document


def random_documents(count: int, vocab_size: int, seed: int = 0) -> list[Document]:
    """Documents of 20 to 39 tokens, prompts of 3 to 6."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = int(torch.randint(20, 40, (), generator=generator))
        token_ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        made.append(Document(token_ids, 3 + number % 4, (0.0, 0.7, 1.0)[number % 3]))
    return made


def random_cache(folder: Path, count: int = 12, vocab_size: int = 211, width: int = 64) -> FeatureCache:
    """A complete cache of random hidden states of taps 0, 2, 3."""
    create(folder, random_documents(count, vocab_size), (0, 2, 3), width)
    cache = FeatureCache(folder)
    generator = torch.Generator().manual_seed(1)
    for document in range(count):
        shape = cache.features(document).shape
        cache.features(document).copy_(torch.randn(shape, generator=generator))
    cache.finish(count)
    return cache
