"""The index of n-grams, the trie of continuations and its weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.drafters.continuations import (
    FIRST,
    LONGEST_MATCH,
    MOST,
    OTHER,
    NgramState,
    TrieNode,
    continuation_trie,
    interpolated,
    occurrences,
)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.data())
def test_the_index_grown_step_by_step_is_the_index_built_at_once(
    tokens: list[int], data: st.DataObject
) -> None:
    grown, at_once = NgramState(), NgramState()
    end = 0
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        grown.extend(tokens[:end])
    at_once.extend(tokens)
    assert grown == at_once


@given(st.lists(st.integers(0, 2), min_size=1, max_size=50))
def test_occurrences_are_the_longest_suffixes_first(tokens: list[int]) -> None:
    state = NgramState()
    state.extend(tokens)
    found = list(occurrences(state))
    assert len(found) <= MOST
    for start, matched in found:
        assert tokens[start - matched : start] == tokens[-matched:]
        assert (
            matched == LONGEST_MATCH
            or start == matched
            or tokens[start - matched - 1] != tokens[-matched - 1]
        )
    suffixes = [min(matched, 3) for _, matched in found]
    assert suffixes == sorted(suffixes, reverse=True)


def test_a_trie_shares_out_the_mass() -> None:
    """After `1 2` came 3 (newest, two tokens agree) and 4; after `2` alone came 5."""
    root = continuation_trie(NgramState(), [1, 2, 4, 2, 5, 1, 2, 3, 1, 2], 2, 0.0)
    first, other = FIRST[0], OTHER[0]
    left = 1 - first[1]
    assert root.probs == pytest.approx({3: first[1], 4: left * other[1], 5: left * (1 - other[1]) * other[0]})
    assert root.left == pytest.approx(left * (1 - other[1]) * (1 - other[0]))
    assert root.children[3].probs == pytest.approx({1: first[2]})
    assert root.children[3].children[1] == TrieNode()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0, 5))
def test_every_node_leaves_mass(tokens: list[int], temperature: float) -> None:
    nodes = [continuation_trie(NgramState(), tokens, 10, temperature)]
    for node in nodes:
        assert node.left > 0
        assert sum(node.probs.values()) + node.left == pytest.approx(1)
        nodes += node.children.values()


@pytest.mark.parametrize("table", [FIRST, OTHER])
def test_weights_follow_the_temperature(table: tuple[tuple[float, ...], ...]) -> None:
    assert interpolated(table, 0.0) == list(table[0])
    assert interpolated(table, 0.7) == pytest.approx(list(table[1]))
    assert interpolated(table, 1.0) == interpolated(table, 5.0) == pytest.approx(list(table[2]))
    middle = [(a + b) / 2 for a, b in zip(table[0], table[1], strict=True)]
    assert interpolated(table, 0.35) == pytest.approx(middle)
    assert all(len(row) == LONGEST_MATCH for row in table)
