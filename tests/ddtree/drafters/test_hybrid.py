"""Mixture rows against the mixture itself, path by path in float64."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeDrafter
from hypothesis import given
from hypothesis import strategies as st

from ddtree.drafters.base import Context, Draft, DraftFault
from ddtree.drafters.continuations import NgramState, TrieNode, continuation_trie
from ddtree.drafters.hybrid import HybridDraft, HybridDrafter, mix
from ddtree.topk import topk_log_softmax
from ddtree.tree import DraftTree, build_ddtree_tree

VOCABULARY = 11
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def dflash_draft(depths: int, candidates: int, seed: int, temperature: float = 1.0) -> Draft:
    logits = 2 * torch.randn(depths, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    top = topk_log_softmax(logits, candidates, temperature)
    return Draft(*top, None, "dflash", temperature, logits)


def trie_of(tokens: list[int], longest: int = 6) -> TrieNode:
    return continuation_trie(NgramState(), tokens, longest, 0.0)


def mixture(draft: Draft, trie: TrieNode, path: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """(the continuations' share, the DFlash row's) of each token after `path`, by the definition."""
    assert draft.logits is not None
    node: TrieNode | None = trie
    for token in path:
        node = None if node is None else node.children.get(token)
    if node is not None and not node.probs:
        node = None
    left = 1.0 if node is None else node.left
    shares = {} if node is None else node.probs
    if len(path) >= len(draft.logits):
        return {token: (share, 0.0) for token, share in shares.items()}
    row = torch.softmax(draft.logits[len(path)].double() / draft.temperature, dim=0).tolist()
    return {token: (shares.get(token, 0.0), left * prob) for token, prob in enumerate(row)}


def best_paths(draft: Draft, trie: TrieNode, budget: int) -> list[tuple[float, tuple[int, ...]]]:
    """The `budget` paths of highest log-weight under the mixture, best first."""

    def extended(weight: float, path: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        for token, (share, rest) in mixture(draft, trie, path).items():
            if share + rest > 0:
                yield -(weight + math.log(share + rest)), (*path, token)

    frontier = list(extended(0.0, ()))
    heapq.heapify(frontier)
    found = []
    while frontier and len(found) < budget:
        cost, path = heapq.heappop(frontier)
        found.append((-cost, path))
        for offer in extended(-cost, path):
            heapq.heappush(frontier, offer)
    return found


def tree_of(draft: Draft, budget: int, width: int | None = None) -> DraftTree:
    assert draft.child_rows is not None
    return build_ddtree_tree(
        draft.top_log_probs[:, :width], draft.top_token_ids[:, :width], draft.child_rows[:, :width], budget
    )


def path_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    path: tuple[int, ...] = ()
    while node:
        path = (int(tree.token_ids[node - 1]), *path)
        node = int(tree.parents[node])
    return path


@given(TEXTS, st.integers(1, 4), st.integers(1, 40), st.integers(0, 99))
def test_the_tree_holds_the_likeliest_paths_of_the_mixture(
    tokens: list[int], depths: int, budget: int, seed: int
) -> None:
    """Rows cut at the budget, and only for trie nodes within reach, are enough for a tree of the budget."""
    dflash, trie = dflash_draft(depths, budget, seed), trie_of(tokens)
    tree = tree_of(mix(dflash, trie, budget), budget)
    expected = best_paths(dflash, trie, budget)
    assert tree.num_nodes == len(expected)
    assert tree.log_weights.tolist() == pytest.approx([weight for weight, _ in expected], abs=1e-5)
    weights = {path: weight for weight, path in best_paths(dflash, trie, budget + 20)}
    for node in range(1, tree.num_nodes + 1):
        assert float(tree.log_weights[node - 1]) == pytest.approx(weights[path_of(tree, node)], abs=1e-5)


@given(TEXTS, st.integers(1, 4), st.floats(0.3, 3), st.integers(0, 99))
def test_a_row_is_the_mixtures_distribution(
    tokens: list[int], depths: int, temperature: float, seed: int
) -> None:
    """Each row that a tree of 60 nodes uses: descending, of mass 1 inside the block and less under it,
    every entry's origin the larger share, its whole row the same distribution."""
    dflash, trie = dflash_draft(depths, VOCABULARY, seed, temperature), trie_of(tokens)
    draft = mix(dflash, trie, VOCABULARY)
    tree = tree_of(draft, 60)
    for node in range(1, tree.num_nodes + 1):
        row, path = int(tree.rows[node - 1]), path_of(tree, node)[:-1]
        expected = mixture(dflash, trie, path)
        logs, ids = draft.top_log_probs[row].double(), draft.top_token_ids[row].tolist()
        assert (logs[1:] <= logs[:-1]).all()
        mass = float(logs.exp().sum())
        assert mass == pytest.approx(1, abs=1e-6) if len(path) < depths else mass < 1
        for token, value, ngram in zip(ids, logs.tolist(), draft.by_ngram[row].tolist(), strict=True):
            share, rest = expected.get(token, (0.0, 0.0))
            if value == -math.inf:
                continue
            assert value == pytest.approx(math.log(share + rest), abs=1e-5)
            assert ngram == (share >= rest) or share == pytest.approx(rest, rel=1e-5)
        whole, (place,) = draft.whole_rows([row])
        if len(path) >= depths:
            assert place == -1 and whole is None
        else:
            probs = torch.softmax(whole[place].double(), dim=0).tolist()
            assert probs == pytest.approx([sum(expected[token]) for token in range(VOCABULARY)], abs=1e-5)


@given(TEXTS, st.integers(1, 3), st.integers(0, 99))
def test_paths_never_cross_continuations(tokens: list[int], depths: int, seed: int) -> None:
    """A node of n-gram origin ends a path that the text holds, and so does everything below the block."""
    draft = mix(dflash_draft(depths, VOCABULARY, seed), trie_of(tokens), VOCABULARY)
    tree = tree_of(draft, 80)
    for node in range(1, tree.num_nodes + 1):
        path = path_of(tree, node)
        if draft.by_ngram[tree.rows[node - 1], tree.ranks[node - 1]] or len(path) > depths:
            assert any(
                tuple(tokens[i : i + len(path)]) == path and tokens[i - 1] == tokens[-1]
                for i in range(1, len(tokens))
            )


@given(TEXTS, st.integers(1, 3), st.integers(0, 99))
def test_a_chain_takes_the_likeliest_token_at_each_depth(tokens: list[int], depths: int, seed: int) -> None:
    dflash, trie = dflash_draft(depths, 2, seed), trie_of(tokens)
    tree = tree_of(mix(dflash, trie, 2), 20, width=1)
    path: tuple[int, ...] = ()
    while row := mixture(dflash, trie, path):
        probs = {token: share + rest for token, (share, rest) in row.items()}
        path = (*path, max(probs, key=lambda token: probs[token]))
    assert tree.token_ids.tolist() == list(path)


@given(TEXTS, st.integers(0, 99))
def test_a_smaller_budgets_tree_is_the_beginning_of_a_larger_ones(tokens: list[int], seed: int) -> None:
    trie = trie_of(tokens)
    small, large = (tree_of(mix(dflash_draft(3, n, seed), trie, n), n) for n in (5, 40))
    nodes = small.num_nodes
    assert small.token_ids.tolist() == large.token_ids[:nodes].tolist()
    assert small.parents.tolist() == large.parents[: nodes + 1].tolist()
    assert small.log_weights.tolist() == large.log_weights[:nodes].tolist()


def test_a_token_of_both_gets_the_sum_and_equal_tokens_stand_by_id() -> None:
    trie = TrieNode({4: 0.25}, {4: TrieNode()}, 0.75)
    logits = torch.zeros(1, 8)
    draft = mix(Draft(*topk_log_softmax(logits, 4), None, "dflash", 1.0, logits), trie, 4)
    assert draft.top_token_ids.tolist() == [[4, 0, 1, 2]]
    expected = [0.25 + 0.75 / 8, 0.75 / 8, 0.75 / 8, 0.75 / 8]
    assert draft.top_log_probs.exp().tolist()[0] == pytest.approx(expected, rel=1e-6)
    assert draft.by_ngram is not None and draft.by_ngram.tolist() == [[True, False, False, False]]
    assert draft.child_rows is not None and draft.child_rows.tolist() == [[-1] * 4]


def test_a_token_outside_the_drafters_vocabulary_is_the_continuations_alone() -> None:
    trie = TrieNode({3: 0.4}, {3: TrieNode()}, 0.6)
    logits = torch.tensor([[0.0, 1.0, -math.inf, -math.inf]])
    draft = mix(Draft(*topk_log_softmax(logits, 4), None, "dflash", 1.0, logits), trie, 4)
    assert draft.top_token_ids[0].tolist()[:3] == [1, 3, 0]
    assert float(draft.top_log_probs[0, 1]) == pytest.approx(math.log(0.4))
    assert draft.top_log_probs[0, 3] == -math.inf
    whole, index = draft.whole_rows([0])
    assert whole is not None and list(index) == [0]
    assert float(torch.softmax(whole[0], dim=0)[3]) == pytest.approx(0.4)


# ---- the drafter ----


def drafted(drafter: HybridDrafter, tokens: list[int], state: Any = None, **changes: Any) -> HybridDraft:
    given: dict[str, Any] = {
        "block_size": drafter.block_size,
        "candidates": 32,
        "temperature": 1.0,
        **changes,
    }
    return drafter.draft(state or drafter.new_state(100), Context(tokens, None), **given)


def fake(depths: int = 3, **options: Any) -> FakeDrafter:
    logits = torch.randn(depths, 8, generator=torch.Generator().manual_seed(5))
    return FakeDrafter(torch.log_softmax(logits, dim=1), **options)


def test_without_a_continuation_the_rows_are_dflashs() -> None:
    inner = fake()
    draft = drafted(HybridDrafter(inner), [1, 2, 3])
    order = torch.sort(inner.log_probs, dim=1, descending=True)
    assert torch.allclose(draft.top_log_probs, order.values)
    assert torch.equal(draft.top_token_ids, order.indices)
    assert draft.child_rows is not None
    assert draft.child_rows[:, 0].tolist() == [1, 2, -1]
    assert draft.by_ngram is not None and not draft.by_ngram.any()


def test_it_drafts_deeper_than_the_dflash_block_and_no_deeper_than_its_own() -> None:
    tokens = [*range(6), 6, 7, 0, 1, 2]
    for block_size, deepest in ((11, 8), (6, 5), (3, 2)):
        inner = fake()
        tree = tree_of(drafted(HybridDrafter(inner), tokens, block_size=block_size), 400)
        assert max(tree.depths.tolist()) == deepest
        assert inner.calls[0]["block_size"] == min(block_size, 4)


def test_its_state_catches_up() -> None:
    tokens = np.random.default_rng(3).integers(0, 4, 40).tolist()
    drafter = HybridDrafter(fake())
    grown = drafter.new_state(100)
    for end in (1, 7, 8, 30):
        drafted(drafter, tokens[:end], grown)
    late, always = drafted(drafter, tokens), drafted(drafter, tokens, grown)
    assert torch.equal(late.top_log_probs, always.top_log_probs)
    assert torch.equal(late.top_token_ids, always.top_token_ids)


def test_the_runs_temperature_lowers_what_continuations_get() -> None:
    drafter = HybridDrafter(fake())
    tokens = [6, 1, 2, 3, 7, 1, 2, 3]
    masses = []
    for temperature in (0.0, 0.7, 1.0, 2.0):
        context = Context(tokens, None, temperature)
        draft = drafter.draft(drafter.new_state(9), context, block_size=4, candidates=8, temperature=1.0)
        rank = draft.top_token_ids[0].tolist().index(7)
        masses.append(float(draft.top_log_probs[0, rank].exp()))
    assert masses[0] > masses[1] > masses[2] == masses[3]


def test_a_fault_of_the_dflash_drafter_is_its_own() -> None:
    with pytest.raises(DraftFault, match="depth 2"):
        drafted(HybridDrafter(fake(fail_at=0)), [1, 2])


def test_what_it_says_of_itself() -> None:
    drafter = HybridDrafter(fake())
    assert (drafter.name, drafter.kind, drafter.block_size) == ("fake + n-gram", "hybrid", 11)
    assert HybridDrafter(fake(15)).block_size == 16
    draft = drafted(drafter, [1, 2, 1], temperature=0.5)
    assert (draft.source, draft.temperature) == ("hybrid", 0.5)
