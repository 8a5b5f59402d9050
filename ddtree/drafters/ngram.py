"""The n-gram drafter: what followed the last tokens before, no training, any target.

The longest suffix of the committed tokens (3 to 1 of them) that occurred earlier gives the candidates: the
tokens that followed each occurrence, newest first, up to `block_size - 1` long. Shorter suffixes fill in
behind. The continuations are merged into a trie whose nodes are the candidate rows, so that no path of a tree
crosses from one continuation into another (DDTree's candidate rows, arXiv 2604.12989, with path-conditioned
children).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ddtree.drafters.base import Context, Draft
from ddtree.trace import Origin

LONGEST = 3
CONTINUATIONS = 16
"""Most occurrences looked at in a step, newest first."""

CONFIDENCE = (0.17, 0.46, 0.55, 0.68, 0.74, 0.78, 0.80, 0.85)
"""How often the newest continuation's next token is the target's, by how many tokens before it agree (1, 2,
...; the last for all above). Measured on 400 answers of SmolLM2-135M-Instruct, temperatures 0 and 0.7."""

_AGED = 0.25
"""An older different continuation of the same suffix holds about this share of what newer ones leave over."""


@dataclass(slots=True)
class NgramState:
    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(
        default_factory=dict
    )  # n-gram -> indices behind it, ascending


@dataclass(slots=True)
class _Node:
    """A row of the trie: candidate tokens in the order they were met, with their probabilities."""

    probs: dict[int, float] = field(default_factory=dict)
    children: dict[int, _Node] = field(default_factory=dict)
    left: float = 1.0  # mass that is not assigned


class NgramDrafter:
    """Training-free drafter. Its log-probabilities leave mass for what it has not seen."""

    name = "n-gram"
    kind: Origin = "ngram"
    taps: tuple[int, ...] = ()
    max_context: int | None = None

    def __init__(self, block_size: int = 11) -> None:
        """block_size - 1 is the length of the longest continuation."""
        self.block_size = block_size

    def new_state(self, capacity: int) -> NgramState:
        del capacity
        return NgramState()

    def draft(
        self, state: NgramState, context: Context, *, block_size: int, candidates: int, temperature: float
    ) -> Draft:
        """Rows of a trie of continuations, none where nothing matches. The temperature has no logits to act
        on and is recorded as 1."""
        del temperature
        _index(state, context.token_ids)
        root = _Node()
        for start, matched in _occurrences(state):
            _insert(root, state.tokens[start : start + block_size - 1], matched)
        return _rows(root, candidates, self.kind)


def _index(state: NgramState, token_ids: Sequence[int]) -> None:
    """Enters the tokens committed since the last call; starts over if the sequence is another one."""
    known = len(state.tokens)
    if known > len(token_ids) or (known and state.tokens[-1] != token_ids[known - 1]):
        state.tokens.clear()
        state.ends.clear()
        known = 0
    state.tokens.extend(token_ids[known:])
    for end in range(known + 1, len(state.tokens) + 1):
        for n in range(1, min(LONGEST, end) + 1):
            state.ends.setdefault(tuple(state.tokens[end - n : end]), []).append(end)


def _occurrences(state: NgramState) -> Iterator[tuple[int, int]]:
    """(where a continuation starts, how many tokens before it agree), longest suffix first, then newest."""
    tokens, total = state.tokens, len(state.tokens)
    seen: set[int] = set()
    for n in range(min(LONGEST, total), 0, -1):
        for start in reversed(state.ends.get(tuple(tokens[total - n :]), [])):
            if start == total or start in seen:
                continue
            if len(seen) == CONTINUATIONS:
                return
            seen.add(start)
            matched = n
            while (
                matched < len(CONFIDENCE)
                and matched < start
                and tokens[start - matched - 1] == tokens[-matched - 1]
            ):
                matched += 1
            yield start, matched


def _insert(root: _Node, continuation: Sequence[int], matched: int) -> None:
    """Adds a continuation to the trie. A new token of a row takes its confidence's share of what the row's
    earlier ones left; a token that is there already is passed through."""
    node = root
    for depth, token in enumerate(continuation):
        if token not in node.probs:
            confidence = CONFIDENCE[min(matched + depth, len(CONFIDENCE)) - 1]
            share = node.left * (confidence if not node.probs else min(confidence, _AGED))
            node.probs[token] = share
            node.left -= share
            node.children[token] = _Node()
        node = node.children[token]


def _rows(root: _Node, candidates: int, kind: Origin) -> Draft:
    """The trie's nodes as candidate rows, breadth first; each row descending, equal values by lower id."""
    nodes = [root] if root.probs else []
    kept: list[list[int]] = []
    links: list[list[int]] = []
    for node in nodes:
        tokens = sorted(node.probs, key=lambda token: (-node.probs[token], token))[:candidates]
        row_links = []
        for token in tokens:
            child = node.children[token]
            row_links.append(len(nodes) if child.probs else -1)
            if child.probs:
                nodes.append(child)
        kept.append(tokens)
        links.append(row_links)
    width = max((len(tokens) for tokens in kept), default=1)
    log_probs = [
        [math.log(node.probs[token]) for token in tokens] + [-math.inf] * (width - len(tokens))
        for node, tokens in zip(nodes, kept, strict=True)
    ]
    padded = [tokens + _others(tokens, width - len(tokens)) for tokens in kept]
    child_rows = [row + [-1] * (width - len(row)) for row in links]
    shape = (len(nodes), width)
    return Draft(
        torch.tensor(log_probs, dtype=torch.float32).reshape(shape),
        torch.tensor(padded, dtype=torch.int64).reshape(shape),
        torch.tensor(child_rows, dtype=torch.int64).reshape(shape),
        kind,
        1.0,
        None,
    )


def _others(tokens: Sequence[int], count: int) -> list[int]:
    """`count` ids that are not in the row, to fill it up behind its -inf entries."""
    others: list[int] = []
    candidate = 0
    while len(others) < count:
        if candidate not in tokens:
            others.append(candidate)
        candidate += 1
    return others
