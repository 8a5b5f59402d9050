"""What the decoder asks of a drafter.

A drafter sees the committed sequence (token ids, and the target's tapped hidden states of every committed
token but the last, the root) and answers with candidate rows. It keeps what it derives from the sequence in
a state of its own and catches up when it is asked to draft, so drafters can be switched in mid-run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ddtree.settings import DrafterName

DRAFT_TEMPERATURE = 1.0
"""The drafter's logits are divided by this before they become the tree's log-probabilities (of a hybrid,
before n-gram continuations are mixed in)."""

_MIN_CANDIDATES = 32
"""Entries of a candidate row that are looked at even for small budgets: the rank of a missed token is worth
knowing, and costs nothing."""


def candidates_for(budget: int, vocab_size: int) -> int:
    """Entries of a candidate row that a tree of `budget` nodes is built from."""
    return min(max(budget, _MIN_CANDIDATES), vocab_size)


@dataclass(frozen=True, slots=True)
class Context:
    """The committed sequence at the start of a step."""

    token_ids: Sequence[int]  # prompt and committed tokens; the last one is the root
    features: torch.Tensor | None  # [capacity, taps * H], model dtype; rows 0..len(token_ids)-2 are filled
    temperature: float = 0.0  # of the run: what the next tokens are sampled at


@dataclass(frozen=True, slots=True)
class Draft:
    """Candidate rows: what `build_ddtree_tree` needs, and what the trace wants to know of them."""

    top_log_probs: torch.Tensor  # [R, K] float32, natural log, each row descending
    top_token_ids: torch.Tensor  # [R, K] int64
    child_rows: torch.Tensor | None  # [R, K] int64, -1: no children; None: the next row for all
    source: DrafterName
    temperature: float
    logits: torch.Tensor | None  # [R, V] whole rows where there are any (total variation), or None
    by_ngram: torch.Tensor | None = None  # [R, K] bool, a hybrid's: the entries of n-gram origin

    def whole_rows(self, rows: Sequence[int]) -> tuple[torch.Tensor | None, Sequence[int]]:
        """(logits [n, V], for each of the candidate rows `rows` its row in them; -1: it has no whole row)."""
        return self.logits, rows


class Drafter(Protocol):
    name: str
    kind: DrafterName
    block_size: int  # the largest, and the default: L + 1
    taps: tuple[int, ...]  # target layers whose output it reads; empty: none
    max_context: int | None

    def new_state(self, capacity: int) -> Any:
        """State of one run whose sequence never exceeds `capacity` tokens."""

    def draft(
        self, state: Any, context: Context, *, block_size: int, candidates: int, temperature: float
    ) -> Draft:
        """At most block_size - 1 depths, at most `candidates` entries a row. Raises DraftFault."""


class DraftFault(RuntimeError):
    """The drafter's output cannot be used: NaN, +inf, or a row without mass; names the depth (from 1)."""

    def __init__(self, message: str, depth: int) -> None:
        super().__init__(message)
        self.depth = depth
