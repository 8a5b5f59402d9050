"""What followed the last tokens before: the continuations that the n-gram and hybrid drafters propose.

The longest suffix of the committed tokens (3 to 1 of them) that occurred earlier gives the candidates: the
tokens that followed each occurrence, newest first. Shorter suffixes fill in behind. The continuations are
merged into a trie, so that no path of a tree crosses from one continuation into another.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

LONGEST = 10
"""Tokens of the longest continuation where nobody asks for longer ones."""

LONGEST_SUFFIX = 3
LONGEST_MATCH = 8
"""Agreeing tokens that are told apart."""

MOST = 16
"""Most occurrences looked at in a step, newest first."""

TEMPERATURES = (0.0, 0.7, 1.0)
FIRST = (
    (0.19, 0.51, 0.62, 0.73, 0.79, 0.81, 0.83, 0.94),
    (0.16, 0.43, 0.51, 0.63, 0.66, 0.72, 0.73, 0.85),
    (0.10, 0.31, 0.37, 0.52, 0.57, 0.62, 0.67, 0.78),
)
"""How often the newest continuation's next token is the target's, at each of the run's TEMPERATURES, by how
many tokens before it agree (1, 2, ...; the last for all above). Printed by benchmarks/calibration.py, for
3,867 answers of SmolLM2-135M-Instruct to prompts of its own."""

OTHER = (
    (0.11, 0.19, 0.25, 0.26, 0.31, 0.28, 0.30, 0.62),
    (0.09, 0.16, 0.19, 0.26, 0.28, 0.30, 0.40, 0.52),
    (0.04, 0.09, 0.10, 0.18, 0.19, 0.21, 0.14, 0.36),
)
"""The same of an older, different continuation, where those before it are not the target's."""


@dataclass(slots=True)
class NgramState:
    """The sequence, and where each of its n-grams ended."""

    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(
        default_factory=dict
    )  # n-gram -> indices behind it, ascending

    def extend(self, token_ids: Sequence[int]) -> None:
        """Enters the tokens committed since the last call; starts over if the sequence is another one."""
        known = len(self.tokens)
        if known > len(token_ids) or (known and self.tokens[-1] != token_ids[known - 1]):
            self.tokens.clear()
            self.ends.clear()
            known = 0
        self.tokens.extend(token_ids[known:])
        for end in range(known + 1, len(self.tokens) + 1):
            for n in range(1, min(LONGEST_SUFFIX, end) + 1):
                self.ends.setdefault(tuple(self.tokens[end - n : end]), []).append(end)


def occurrences(state: NgramState) -> Iterator[tuple[int, int]]:
    """(where a continuation starts, how many tokens before it agree), longest suffix first, then newest."""
    tokens, total = state.tokens, len(state.tokens)
    seen: set[int] = set()
    for n in range(min(LONGEST_SUFFIX, total), 0, -1):
        for start in reversed(state.ends.get(tuple(tokens[total - n :]), [])):
            if start == total or start in seen:
                continue
            if len(seen) == MOST:
                return
            seen.add(start)
            matched = n
            while (
                matched < LONGEST_MATCH
                and matched < start
                and tokens[start - matched - 1] == tokens[-matched - 1]
            ):
                matched += 1
            yield start, matched


@dataclass(slots=True)
class TrieNode:
    """A row of the trie: candidate tokens in the order they were met, with their probabilities."""

    probs: dict[int, float] = field(default_factory=dict)
    children: dict[int, TrieNode] = field(default_factory=dict)
    left: float = 1.0  # mass that is not assigned

    def insert(
        self, continuation: Sequence[int], matched: int, first: Sequence[float], other: Sequence[float]
    ) -> None:
        """Adds a continuation below this node. A new token of a row takes its share of what the row's
        earlier ones left: that of `first` where there are none, else that of `other`; a token that is there
        already is passed through."""
        node = self
        for depth, token in enumerate(continuation):
            if token not in node.probs:
                weights = other if node.probs else first
                share = node.left * weights[min(matched + depth, LONGEST_MATCH) - 1]
                node.probs[token] = share
                node.left -= share
                node.children[token] = TrieNode()
            node = node.children[token]


def continuation_trie(
    state: NgramState, token_ids: Sequence[int], longest: int, temperature: float
) -> TrieNode:
    """The root of the trie of what may follow `token_ids`, at most `longest` tokens deep; a node without
    probs where nothing matches. temperature: the run's, which the weights follow."""
    state.extend(token_ids)
    first, other = interpolated(FIRST, temperature), interpolated(OTHER, temperature)
    root = TrieNode()
    for start, matched in occurrences(state):
        root.insert(state.tokens[start : start + longest], matched, first, other)
    return root


def interpolated(table: Sequence[Sequence[float]], temperature: float) -> list[float]:
    """The row of `table` at a temperature: linear between TEMPERATURES, the last row beyond."""
    above = min(bisect.bisect_right(TEMPERATURES, temperature), len(TEMPERATURES) - 1)
    low, high = TEMPERATURES[above - 1], TEMPERATURES[above]
    part = min((temperature - low) / (high - low), 1.0)
    return [a + part * (b - a) for a, b in zip(table[above - 1], table[above], strict=True)]
