"""Continuations of the last tokens as candidate rows."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddtree.drafters.base import Context
from ddtree.drafters.ngram import NgramDrafter
from ddtree.tree import build_ddtree_tree


def draft(tokens: list[int], state: Any = None, block_size: int = 11, candidates: int = 64) -> Any:
    drafter = NgramDrafter()
    return drafter.draft(
        drafter.new_state(100) if state is None else state,
        Context(tokens, None),
        block_size=block_size,
        candidates=candidates,
        temperature=0.0,
    )


def walks(made: Any) -> list[list[int]]:
    """The token sequences from the root row to each entry, longest ones only."""
    found: list[list[int]] = []

    def follow(row: int, before: list[int]) -> None:
        for rank in range(made.top_token_ids.shape[1]):
            if made.top_log_probs[row, rank] == -math.inf:
                continue
            path = [*before, int(made.top_token_ids[row, rank])]
            below = int(made.child_rows[row, rank])
            if below < 0:
                found.append(path)
            else:
                follow(below, path)

    if len(made.top_token_ids):
        follow(0, [])
    return found


def test_what_followed_the_longest_suffix_comes_first() -> None:
    made = draft([1, 2, 3, 40, 41, 9, 3, 50, 51, 1, 2, 3])
    assert walks(made)[0] == [40, 41, 9, 3, 50, 51, 1, 2, 3]
    assert sorted(walks(made)) == sorted([[40, 41, 9, 3, 50, 51, 1, 2, 3], [50, 51, 1, 2, 3]])
    assert (made.source, made.temperature, made.logits) == ("ngram", 1.0, None)


def test_nothing_known_drafts_nothing() -> None:
    for tokens in ([5], [1, 2, 3, 4]):
        made = draft(tokens)
        assert made.top_log_probs.shape[0] == 0
        tree = build_ddtree_tree(made.top_log_probs, made.top_token_ids, made.child_rows, 15)
        assert tree.num_nodes == 0


def test_the_length_is_the_blocks() -> None:
    tokens = [*range(20), 0]
    assert walks(draft(tokens)) == [list(range(1, 11))]
    assert walks(draft(tokens, block_size=4)) == [[1, 2, 3]]


def test_the_newest_of_equal_suffixes_is_likeliest() -> None:
    made = draft([7, 1, 7, 2, 7, 3, 7])
    assert made.top_token_ids[0, :3].tolist() == [3, 2, 1]
    assert made.top_log_probs[0, 0] > made.top_log_probs[0, 1] > made.top_log_probs[0, 2]


def test_shared_beginnings_are_one_path() -> None:
    made = draft([7, 1, 2, 8, 7, 1, 3, 8, 7])
    assert sorted(path[:3] for path in walks(made)) == [[1, 2, 8], [1, 3, 8]]
    assert made.top_token_ids.shape[0] >= 2
    assert (made.top_log_probs[0] > -math.inf).sum() == 1


def test_a_row_is_cut_at_the_candidates() -> None:
    tokens = [token for i in range(8) for token in (7, 10 + i)] + [7]
    made = draft(tokens, candidates=3)
    assert made.top_token_ids[0].tolist() == [17, 16, 15]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(2, 11), st.integers(1, 8))
def test_rows_are_valid_and_paths_are_real_continuations(
    tokens: list[int], block_size: int, candidates: int
) -> None:
    made = draft(tokens, block_size=block_size, candidates=candidates)
    for row, ids in zip(made.top_log_probs.double(), made.top_token_ids.tolist(), strict=True):
        assert (row[1:] <= row[:-1]).all()
        assert row.exp().sum() < 1
        assert len(set(ids)) == len(ids)
        assert min(ids) >= 0
    for path in walks(made):
        assert 1 <= len(path) < block_size
        assert any(
            tokens[i : i + len(path)] == path and tokens[i - 1] == tokens[-1] for i in range(1, len(tokens))
        )
    tree = build_ddtree_tree(made.top_log_probs, made.top_token_ids, made.child_rows, 15)
    assert tree.num_nodes <= 15


def test_another_sequence_starts_over() -> None:
    drafter = NgramDrafter()
    state = drafter.new_state(100)
    draft([1, 2, 3, 1, 2], state)
    assert walks(draft([1, 9, 1], state)) == [[9, 1]]
    assert walks(draft([4], state)) == []


def test_repeating_text_is_drafted_whole() -> None:
    """Copying the prompt is what the drafter is for: a tree of 10 nodes is the continuation, one path."""
    random.seed(1)
    passage = random.sample(range(1000), 40)
    made = draft([*passage, 5000, *passage[:10]])
    tree = build_ddtree_tree(made.top_log_probs, made.top_token_ids, made.child_rows, 10)
    assert tree.token_ids.tolist() == passage[10:20]
    assert tree.depths.tolist() == list(range(1, 11))


def test_what_it_says_of_itself() -> None:
    drafter = NgramDrafter()
    assert (drafter.kind, drafter.block_size, drafter.taps, drafter.max_context) == ("ngram", 11, (), None)
    assert draft([1, 2, 1]).top_token_ids.dtype is torch.int64
    with pytest.raises(TypeError):
        NgramDrafter(1, 2)  # type: ignore[call-arg]
