"""The n-gram drafter: what followed the last tokens before, no training, any target.

The trie of continuations (`ddtree.drafters.continuations`) is the draft: its nodes are the candidate rows
(DDTree's candidate rows, arXiv 2604.12989, with path-conditioned children).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ddtree.drafters.base import Context, Draft
from ddtree.drafters.continuations import LONGEST, NgramState, TrieNode, continuation_trie
from ddtree.settings import DrafterName


class NgramDrafter:
    """Training-free drafter. Its log-probabilities leave mass for what it has not seen."""

    name = "n-gram"
    kind: DrafterName = "ngram"
    taps: tuple[int, ...] = ()
    max_context: int | None = None

    def __init__(self, block_size: int = LONGEST + 1) -> None:
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
        root = continuation_trie(state, context.token_ids, block_size - 1, context.temperature)
        return _rows(root, candidates, self.kind)


def _rows(root: TrieNode, candidates: int, kind: DrafterName) -> Draft:
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
