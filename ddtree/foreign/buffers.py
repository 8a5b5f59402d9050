"""SGLang's tree buffers, or plain retrieve arrays: one tree for each row of the batch.

draft_token, retrieve_index, retrieve_next_token, retrieve_next_sibling and positions are [bs, n] or flat
[bs * n]; accept_index [bs, S] holds retrieve indices, -1 where unused; predicts, at a node's retrieve index,
the token after it; accept_token_num (also accept_length) the accepted drafts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ddtree.foreign.errors import ForeignError
from ddtree.foreign.trees import Fault, ForeignTree, Structure, path_faults, structure
from ddtree.foreign.values import Floats, Ints, floats, ints

MAX_BATCH = 1024
MAX_CELLS = 4_000_000
"""Entries of target_probs."""

_TOKENS = ("candidates", "draft_token", "draft_tokens", "token_ids")
_COUNTS = ("accept_token_num", "accept_length")
_NAMES = (
    *("retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "positions", "parents", "depths"),
    *(
        "num_nodes",
        "log_weights",
        "accept_index",
        "predicts",
        "target_probs",
        "probs",
        "uniform_samples",
        "coins",
    ),
    *("uniform_samples_for_final_sampling", "final_coin", *_TOKENS, *_COUNTS),
)


def read_buffers(given: dict[str, Any]) -> tuple[list[ForeignTree], tuple[str, ...]]:
    """(the tree of each batch row, the names that are understood). Raises ForeignError."""
    for name in ("retrieve_next_token", "retrieve_next_sibling"):
        if name not in given:
            raise ForeignError(f"{name} is missing: both pointer arrays are needed")
    next_token = _matrix("retrieve_next_token", ints("retrieve_next_token", given["retrieve_next_token"]))
    buffers = _Buffers(given, *next_token.shape)
    next_sibling = buffers.ints("retrieve_next_sibling")
    assert next_sibling is not None
    return [buffers.tree(b, next_token[b], next_sibling[b]) for b in range(len(next_token))], _NAMES


def _matrix(name: str, array: Ints) -> Ints:
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or 0 in array.shape:
        raise ForeignError(f"{name} must be [nodes] or [batch, nodes], not {list(array.shape)}")
    if len(array) > MAX_BATCH:
        raise ForeignError(f"a batch of {len(array)} is too large: give at most {MAX_BATCH} rows")
    return array


class _Buffers:
    """The arrays of a batch of `bs` trees of `n` entries."""

    def __init__(self, given: dict[str, Any], bs: int, n: int) -> None:
        self._given, self._bs, self._n = given, bs, n
        self._index = self.ints("retrieve_index")
        self._tokens = next((self.ints(name) for name in _TOKENS if name in given), None)
        self._positions = self.ints("positions")
        self._predicts = None if "predicts" not in given else ints("predicts", given["predicts"]).ravel()
        self._accepted = self._rows_of("accept_index")
        counts = next((name for name in _COUNTS if name in given), None)
        self._counts = None if counts is None else ints(counts, given[counts]).ravel()
        self._coins = next(
            (self._floats(name) for name in ("uniform_samples", "coins") if name in given), None
        )
        final = next((f for f in ("uniform_samples_for_final_sampling", "final_coin") if f in given), None)
        self._final = None if final is None else floats(final, given[final]).ravel()
        self._probs = self._target_probs()

    def ints(self, name: str) -> Ints | None:
        """[bs, n] of a field that may be flat; None: not given."""
        if self._given.get(name) is None:
            return None
        array = ints(name, self._given[name])
        if array.size != self._bs * self._n:
            raise ForeignError(
                f"{name} has {array.size} entries; retrieve_next_token has {self._bs} x {self._n}"
            )
        return array.reshape(self._bs, self._n)

    def _floats(self, name: str) -> Floats:
        array = floats(name, self._given[name])
        if array.size != self._bs * self._n:
            raise ForeignError(f"{name} has {array.size} entries; this batch needs {self._bs * self._n}")
        return array.reshape(self._bs, self._n)

    def _rows_of(self, name: str) -> Ints | None:
        if self._given.get(name) is None:
            return None
        array = ints(name, self._given[name])
        if array.size % self._bs:
            raise ForeignError(
                f"{name} has {array.size} entries, which is no multiple of the batch of {self._bs}"
            )
        return array.reshape(self._bs, -1)

    def _target_probs(self) -> Floats | None:
        if self._given.get("target_probs") is None:
            return None
        array = floats("target_probs", self._given["target_probs"])
        rows = self._bs * self._n
        if array.size > MAX_CELLS:
            raise ForeignError(
                f"target_probs has {array.size} entries, the limit is {MAX_CELLS}: give fewer nodes or tokens"
            )
        if array.ndim < 2 or array.size % rows or array.size == 0 or array.shape[-1] != array.size // rows:
            raise ForeignError(
                f"target_probs is {list(array.shape)}; this batch needs [{self._bs}, {self._n}, vocabulary]"
            )
        return array.reshape(self._bs, self._n, -1)

    def tree(self, b: int, next_token: Ints, next_sibling: Ints) -> ForeignTree:
        """Batch row b."""
        plain = self._bs == 1
        depths = self._depths(b)
        weights = self._given.get("log_weights") if plain else None
        nodes = self._given.get("num_nodes") if plain else None
        parents = self._given.get("parents") if plain else None
        tokens = None if self._tokens is None else self._tokens[b].tolist()
        found = structure(
            next_token.tolist(),
            next_sibling.tolist(),
            num_nodes=None if nodes is None else int(ints("num_nodes", nodes).ravel()[0]),
            parents=None if parents is None else ints("parents", parents).ravel().tolist(),
            depths=depths,
            log_weights=None
            if weights is None
            else floats("log_weights", weights, -math.inf).ravel().tolist(),
            candidates=tokens,
        )
        size = len(found.parents)
        faults = self._index_faults(b, size)
        path = self._path(b)
        if path is not None:
            faults += path_faults(found, path) + self._count_faults(b, path)
        probs = self._given.get("probs") if plain else None
        return found.tree(
            faults,
            token_ids=None if tokens is None else tokens[1:size],
            root_token=None if tokens is None else tokens[0],
            retrieve_index=None if self._index is None else self._index[b].tolist()[:size],
            log_weights=None
            if weights is None
            else floats("log_weights", weights, -math.inf).ravel().tolist()[: size - 1],
            accept_index=None if path is None or path_faults(found, path) else path,
            bonus_token_id=self._bonus(b, found, path),
            coins=None if self._coins is None else self._coins[b].tolist()[:size],
            final_coin=None if self._final is None or b >= len(self._final) else float(self._final[b]),
            target_probs=None if self._probs is None else self._probs[b, :size].astype(np.float32),
            node_probs=None if probs is None else floats("probs", probs).ravel().tolist()[: size - 1],
        )

    def _depths(self, b: int) -> list[int] | None:
        if self._positions is not None:  # padding may hold anything
            return (self._positions[b, 1:] - self._positions[b, 0]).tolist()  # type: ignore[no-any-return]
        depths = self._given.get("depths") if self._bs == 1 else None
        return None if depths is None else ints("depths", depths).ravel().tolist()

    def _index_faults(self, b: int, size: int) -> list[Fault]:
        """retrieve_index is a batch row's offset plus the node."""
        if self._index is None:
            return []
        first = int(self._index[b, 0])
        return [
            Fault(
                "wrong_index",
                node,
                f"retrieve_index is {value}; counted from the root's {first} it is {first + node}",
            )
            for node, value in enumerate(self._index[b].tolist()[:size])
            if value != first + node
        ]

    def _path(self, b: int) -> list[int] | None:
        """The recorded path as nodes of this tree, root first."""
        if self._accepted is None:
            return None
        used = [int(value) for value in self._accepted[b] if value != -1]
        if self._index is None and self._bs > 1:
            return None  # which row an index belongs to is not said
        first = 0 if self._index is None else int(self._index[b, 0])
        return [value - first for value in used]

    def _count_faults(self, b: int, path: list[int]) -> list[Fault]:
        if self._counts is None or b >= len(self._counts) or int(self._counts[b]) == len(path) - 1:
            return []
        message = (
            f"accept_token_num is {int(self._counts[b])}, accept_index holds {len(path) - 1} accepted drafts"
        )
        return [Fault("count_disagrees", 0, message)]

    def _bonus(self, b: int, found: Structure, path: list[int] | None) -> int | None:
        if self._predicts is None or not path or path_faults(found, path):
            return None
        at = path[-1] + (0 if self._index is None else int(self._index[b, 0]))
        return int(self._predicts[at]) if 0 <= at < len(self._predicts) else None
