"""Batches: a few documents, their anchors, and the (anchor, position) pairs that are trained.

The drafted position j = 1, 2, ... weighs exp(-(j - 1) / gamma) in the loss (DFlash, arXiv 2602.06036,
section 3). The weight is spent as the share of anchors at which the position is trained, so that the later
ones cost as little as they count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ddtree.training.features import FeatureCache

_STEP = 32
"""Lengths and row counts are rounded up to a multiple: products of a shape that was met before start at once,
a new one has to be compiled."""


@dataclass(frozen=True, slots=True)
class Batch:
    features: torch.Tensor  # bfloat16 [B, T, taps * H], zero behind a document's end
    token_ids: torch.Tensor  # int64 [B, T]
    anchors: torch.Tensor  # int64 [B, A], indices of roots
    # the trained pairs, by position: row i is anchor_rows[i] of the flattened anchors, slot slots[i]
    anchor_rows: torch.Tensor  # int64 [n]
    slots: torch.Tensor  # int64 [n], ascending, 0 for the first position behind the root
    before: torch.Tensor  # int64 [n], the flattened index (of B * T) of the token before the label

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def pick_documents(step: int, batch: int, first: int, end: int, seed: int) -> list[int]:
    """The documents of a step: those of [first, end) in an order drawn anew for each pass over them."""
    per_pass = (end - first) // batch
    number, place = divmod(step, per_pass)
    order = torch.randperm(end - first, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
    return [first + int(i) for i in order[place * batch : (place + 1) * batch]]


def make_batch(
    cache: FeatureCache,
    documents: list[int],
    anchors: int,
    positions: int,
    gamma: float,
    generator: torch.Generator,
) -> Batch:
    """anchors: how many of a document's tokens play the root, drawn from those that have a token of the
    answer after them. positions: those drafted behind a root."""
    lengths = torch.tensor([cache.length(document) for document in documents])
    longest = -(-int(lengths.max()) // _STEP) * _STEP
    features = torch.zeros(len(documents), longest, cache.features(0).shape[1], dtype=torch.bfloat16)
    token_ids = torch.zeros(len(documents), longest, dtype=torch.int64)
    roots = torch.empty(len(documents), anchors, dtype=torch.int64)
    for row, document in enumerate(documents):
        length = int(lengths[row])
        features[row, :length] = cache.features(document)
        token_ids[row, :length] = cache.tokens(document)
        first = int(cache.starts[document]) - 1
        drawn = _draw(torch.arange(first, length - 1), anchors, generator)
        roots[row] = drawn.sort().values
    rows, slots, before = [], [], []
    offsets = torch.arange(len(documents))[:, None] * longest
    for slot in range(positions):
        inside = (roots + slot + 1 < lengths[:, None]).flatten().nonzero().flatten()
        share = -(-int(roots.numel() * math.exp(-slot / gamma)) // _STEP) * _STEP
        picked = _draw(inside, share, generator)
        rows.append(picked)
        slots.append(torch.full_like(picked, slot))
        before.append((roots + slot + offsets).flatten()[picked])
    return Batch(features, token_ids, roots, torch.cat(rows), torch.cat(slots), torch.cat(before))


def _draw(values: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """`count` of `values` [n] in random order, all of them before any comes twice."""
    order = torch.randperm(len(values), generator=generator)
    return values[order[torch.arange(count) % len(order)]]
