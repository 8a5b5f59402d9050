"""The hybrid drafter: n-gram continuations inside the DDTree (arXiv 2604.12989) of a DFlash drafter's rows.

A path that lies on a continuation of the committed text is a node of their trie, and its children have a
candidate row of their own: the continuations' next tokens with the trie's probabilities, and with the mass
that these leave the DFlash row of the position. A token of both gets the sum, so the row is a distribution
over the vocabulary. Every other path has the plain DFlash row of its position. Below the DFlash block the
continuations' tokens are the only candidates, so that the tree may be deeper than the block.

The drafter's temperature acts on the DFlash logits, before they are mixed. A token that both propose is of
n-gram origin where the trie's share of its probability is at least the DFlash row's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ddtree.drafters.base import Context, Draft, Drafter
from ddtree.drafters.continuations import LONGEST, NgramState, TrieNode, continuation_trie
from ddtree.settings import DrafterName

_PADDING = 2**31 - 1  # a token id that comes after all others

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class HybridState:
    dflash: Any
    ngram: NgramState


class _Path(NamedTuple):
    """A node of the trie whose children are on continuations too."""

    node: TrieNode
    depth: int  # 0: the root
    parent: int  # index of the path without the last token, -1: none
    entry: int  # of the last token among all entries, -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridDraft(Draft):
    """Of L DFlash rows: row 0 is the root's, row d in 1..L-1 the plain one of depth d + 1, row L - 1 + i that
    of paths[i]."""

    paths: Sequence[_Path]  # the root first
    norms: Floats  # [L], log-sum-exp of the DFlash logits / temperature

    def whole_rows(self, rows: Sequence[int]) -> tuple[torch.Tensor | None, Sequence[int]]:
        """Of a mixture the DFlash row's logits, those of the continuations' tokens raised by what it adds
        to them; all others fall alike by the mass left, which normalising undoes. Below the DFlash block the
        continuations leave mass to nobody, and there is no whole row."""
        assert self.logits is not None
        depths = len(self.logits)
        paths = [self.paths[max(row - depths + 1, 0)] if row == 0 or row >= depths else None for row in rows]
        depth = [row if path is None else path.depth for row, path in zip(rows, paths, strict=True)]
        places = itertools.count()
        index = [next(places) if 0 <= at < depths else -1 for at in depth]
        if max(index) < 0:
            return None, index
        whole = self.logits[[at for at in depth if 0 <= at < depths]].float() / self.temperature
        for at, path, place in zip(depth, paths, index, strict=True):
            if path is not None and place >= 0:
                tokens = torch.tensor(list(path.node.probs), dtype=torch.int64)
                added = np.log(list(path.node.probs.values())) - np.log(path.node.left) + self.norms[at]
                raised = torch.logaddexp(whole[place, tokens], torch.tensor(added).to(whole))
                whole[place, tokens] = raised
        return whole, index


class HybridDrafter:
    """Drafts with a DFlash drafter and with the n-grams of the sequence at once."""

    kind: DrafterName = "hybrid"

    def __init__(self, dflash: Drafter) -> None:
        self.dflash = dflash
        self.name = f"{dflash.name} + n-gram"
        self.block_size = max(dflash.block_size, LONGEST + 1)
        self.taps = dflash.taps
        self.max_context = dflash.max_context

    def new_state(self, capacity: int) -> HybridState:
        return HybridState(self.dflash.new_state(capacity), NgramState())

    def draft(
        self, state: HybridState, context: Context, *, block_size: int, candidates: int, temperature: float
    ) -> HybridDraft:
        """DFlash rows up to that drafter's own block size, continuations of up to block_size - 1 tokens."""
        dflash = self.dflash.draft(
            state.dflash,
            context,
            block_size=min(block_size, self.dflash.block_size),
            candidates=candidates,
            temperature=temperature,
        )
        trie = continuation_trie(state.ngram, context.token_ids, block_size - 1, context.temperature)
        return mix(dflash, trie, candidates)


class _Rows(NamedTuple):
    """Candidate rows on the host, [R, K] each."""

    log_probs: NDArray[Any]  # float32 once they are sorted
    token_ids: Integers
    child_rows: Integers
    by_ngram: NDArray[np.bool_]


class _Entries(NamedTuple):
    """The tokens of all trie nodes one after another, [E] each."""

    starts: list[int]  # [paths + 1], of each path's entries
    token_ids: Integers
    shares: Floats  # the continuations' part of their probability
    rests: Floats  # the DFlash row's


def mix(dflash: Draft, trie: TrieNode, candidates: int) -> HybridDraft:
    """The candidate rows of `dflash`, of L >= 1 positions with whole logits, and of a trie, perhaps empty.

    A row holds as many of its mixture's likeliest tokens as dflash's rows do, computed in float64 and rounded
    to float32, descending, equal values by lower id. Only those trie nodes have a row of their own that a
    tree of `candidates` nodes, or a chain, can reach.
    """
    plain = _plain_rows(dflash)
    paths = _paths(trie)
    entries, norms = _entries(paths, dflash)
    kept = _reachable(paths, entries, candidates)
    mixed = _mixed_rows(paths, kept, entries, plain)
    rows = [
        torch.from_numpy(np.concatenate((own[:1], other[1:], own[1:])))
        for own, other in zip(mixed, plain, strict=True)
    ]
    return HybridDraft(
        top_log_probs=rows[0],
        top_token_ids=rows[1],
        child_rows=rows[2],
        source="hybrid",
        temperature=dflash.temperature,
        logits=dflash.logits,
        by_ngram=rows[3],
        paths=[paths[i] for i in kept],
        norms=norms,
    )


def _plain_rows(dflash: Draft) -> _Rows:
    """The drafter's own rows, each followed by the next."""
    ids = dflash.top_token_ids.cpu().numpy()
    following = np.arange(1, len(ids) + 1)
    following[-1] = -1
    return _Rows(
        dflash.top_log_probs.cpu().numpy(),
        ids,
        np.repeat(following[:, None], ids.shape[1], axis=1),
        np.zeros(ids.shape, dtype=bool),
    )


def _paths(trie: TrieNode) -> list[_Path]:
    """The root and every node that is continued, parents first; entries count in this order."""
    paths, entry = [_Path(trie, 0, -1, -1)], 0
    for i, path in enumerate(paths):
        for child in path.node.children.values():
            if child.probs:
                paths.append(_Path(child, path.depth + 1, i, entry))
            entry += 1
    return paths


def _entries(paths: Sequence[_Path], dflash: Draft) -> tuple[_Entries, Floats]:
    """What the continuations give their tokens and what the DFlash row of the position adds to it; and that
    row's log-sum-exp, for each of the L positions."""
    assert dflash.logits is not None
    token_ids = np.array([token for path in paths for token in path.node.probs], dtype=np.int64)
    shares = np.array([share for path in paths for share in path.node.probs.values()], dtype=np.float64)
    depths = len(dflash.logits)
    counts = [len(path.node.probs) for path in paths]
    starts = [0, *itertools.accumulate(counts)]
    depth = np.repeat([path.depth for path in paths], counts)
    left = np.repeat([path.node.left for path in paths], counts)
    inside = depth < depths
    rows = np.append(np.arange(depths), depth[inside])  # the likeliest of each position in front
    columns = np.append(dflash.top_token_ids[:, 0].cpu().numpy(), token_ids[inside])
    logits = dflash.logits[torch.from_numpy(rows), torch.from_numpy(columns)].double().cpu().numpy()
    logits = logits / dflash.temperature
    norms = logits[:depths] - dflash.top_log_probs[:, 0].double().cpu().numpy()
    rests = np.zeros(len(token_ids))
    rests[inside] = left[inside] * np.exp(logits[depths:] - norms[depth[inside]])
    return _Entries(starts, token_ids, shares, rests), norms


def _reachable(paths: Sequence[_Path], entries: _Entries, candidates: int) -> list[int]:
    """The paths whose children a tree of `candidates` nodes may hold, or a chain; the root first.

    Those are the likeliest, since whatever is likelier than a node comes before it; and those that the chain
    of each row's likeliest entries runs along.
    """
    probs = (entries.shares + entries.rests).tolist()
    weights = [1.0]
    for path in paths[1:]:
        weights.append(weights[path.parent] * probs[path.entry])
    likeliest = sorted(range(len(paths)), key=lambda i: -weights[i])
    kept = dict.fromkeys(likeliest[: candidates + 1])
    by_entry = {path.entry: i for i, path in enumerate(paths)}
    chain: int | None = 0
    while chain is not None:
        kept[chain] = None
        row = range(entries.starts[chain], entries.starts[chain + 1])
        chain = by_entry.get(max(row, key=probs.__getitem__)) if row else None
    return list(kept)


def _mixed_rows(paths: Sequence[_Path], kept: Sequence[int], entries: _Entries, plain: _Rows) -> _Rows:
    """The rows of the kept paths, sorted and cut."""
    depths, width = plain.token_ids.shape
    depth = np.array([paths[i].depth for i in kept])
    position = np.minimum(depth, depths - 1)
    own_rows = np.full(len(entries.token_ids), -1)
    own_rows[[paths[i].entry for i in kept[1:]]] = range(depths, depths + len(kept) - 1)

    spans = [range(entries.starts[i], entries.starts[i + 1]) for i in kept]
    flat = [entry for span in spans for entry in span]
    row = np.repeat(np.arange(len(kept)), [len(span) for span in spans])
    column = [column for span in spans for column in range(len(span))]

    def padded(values: NDArray[Any], padding: float) -> NDArray[Any]:
        array = np.full((len(kept), max(map(len, spans))), padding, dtype=values.dtype)
        array[row, column] = values
        return array

    token_ids, shares, rests = entries.token_ids[flat], entries.shares[flat], entries.rests[flat]
    ids = plain.token_ids[position]
    logs = plain.log_probs[position] + np.log([[paths[i].node.left] for i in kept])
    twice, where = (ids[row] == token_ids[:, None]).nonzero()
    logs[row[twice], where] = -np.inf  # the mixture's own entry has it all
    logs[depth >= depths] = -np.inf
    links = plain.child_rows[position]
    own = np.where(own_rows[flat] < 0, links[row, 0], own_rows[flat])
    return _sorted(
        _Rows(
            np.concatenate((padded(np.log(shares + rests), -np.inf), logs), axis=1, dtype=np.float32),
            np.concatenate((padded(token_ids, _PADDING), ids), axis=1),
            np.concatenate((padded(own, -1), links), axis=1),
            np.concatenate((padded(shares >= rests, False), plain.by_ngram[position]), axis=1),
        ),
        width,
    )


def _sorted(rows: _Rows, width: int) -> _Rows:
    """Each row descending, equal values by lower id, cut at `width`."""
    # The bits of numbers from 0 up compare as the numbers do.
    bits = np.maximum(-rows.log_probs, np.float32(0)).view(np.int32).astype(np.int64)
    order = np.argsort((bits << 32) + rows.token_ids, axis=1)[:, :width]
    row = np.arange(len(order))[:, None]
    return _Rows(
        rows.log_probs[row, order],
        rows.token_ids[row, order],
        rows.child_rows[row, order],
        rows.by_ngram[row, order],
    )
