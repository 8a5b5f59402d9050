"""What the samplers give follows the target's distribution.

Seeds are fixed, so a passing test passes again. FALSE_ALARM is the chance that a right sampler would have
failed one chi-square comparison of this file; there are fewer than 150.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from sampling_reference import Tree, chain, sampled_row, star, verify
from scipy.stats import chi2

from ddtree import tree_speculative_sampling_target_only
from ddtree.sampling import coins

FALSE_ALARM = 1e-7


def assert_follows(counts: Sequence[int], probs: Sequence[float]) -> None:
    """Pearson's chi-square; cells expected below 5 are pooled; a cell without probability must be empty."""
    total = sum(counts)
    cells, rest = [], [0.0, 0.0]
    for count, prob in zip(counts, probs, strict=True):
        expected = total * prob
        if prob == 0:
            assert count == 0
        elif expected < 5:
            rest = [rest[0] + count, rest[1] + expected]
        else:
            cells.append((count, expected))
    if rest[1] > 0:
        cells.append((int(rest[0]), rest[1]))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    assert len(cells) == 1 or chi2.sf(statistic, len(cells) - 1) > FALSE_ALARM, (counts, probs)


def committed_from_probs(
    rows: Sequence[Sequence[float]], tree: Tree, steps: int, *, seed: int = 0, **rule: float
) -> list[tuple[int, ...]]:
    """The committed tokens of `steps` independent steps on the same tree; equal siblings are not refused."""
    nodes = len(tree.parents)
    drawn = [coins(seed, step, nodes) for step in range(steps)]
    predicts = torch.zeros(steps * nodes, dtype=torch.int32)
    accept_index = torch.zeros(steps, nodes, dtype=torch.int32)
    accept_token_num = torch.zeros(steps, dtype=torch.int32)
    probs = torch.tensor(rows).expand(steps, -1, -1).contiguous()
    status = torch.zeros(steps, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts,
        accept_index,
        accept_token_num,
        *(array.repeat(steps, 1) for array in tree.arrays()[:1]),
        torch.arange(steps * nodes).reshape(steps, nodes),
        *(array.repeat(steps, 1) for array in tree.arrays()[1:]),
        torch.stack([uniform for uniform, _ in drawn]),
        torch.tensor([final for _, final in drawn]),
        probs,
        None,
        status=status,
        **rule,
    )
    assert not status.any()
    tokens = predicts[accept_index.flatten().long()].reshape(steps, nodes).tolist()
    return [tuple(row[: n + 1]) for row, n in zip(tokens, accept_token_num.tolist(), strict=True)]


def first_tokens(committed: list[tuple[int, ...]], size: int) -> list[int]:
    counts = Counter(tokens[0] for tokens in committed)
    return [counts[token] for token in range(size)]


TREES = {
    "root alone": star([]),
    "one child": star([0]),
    "likeliest first": star([0, 1, 2, 3]),
    "unlikely first": star([5, 4, 1]),
    "impossible among them": star([6, 1, 7]),
    "all tokens": star([3, 1, 0, 2, 4, 5]),
    "chain": chain([0, 0, 0]),
    "bushy": Tree([-1, 0, 0, 1, 1, 2, 3, 3, 6], [0, 0, 1, 2, 0, 1, 3, 0, 0]),
}
ROWS = [
    [0.35, 0.25, 0.2, 0.1, 0.07, 0.03, 0.0, 0.0],
    [0.1, 0.1, 0.6, 0.0, 0.0, 0.1, 0.1, 0.0],
    [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.02, 0.02, 0.02, 0.9, 0.01, 0.01, 0.01, 0.01],
    [0.125] * 8,
]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_every_committed_token_follows_its_row(tree: Tree) -> None:
    """Given the node it is drawn at, whether it was accepted or is the bonus. Thresholds are 1."""
    rows = [ROWS[node % len(ROWS)] for node in range(len(tree.parents))]
    committed = committed_from_probs(rows, tree, 40_000)
    counts = [Counter[int]() for _ in rows]
    for tokens in committed:
        node = 0
        for token in tokens:
            counts[node][token] += 1
            children = [child for child in tree.children[node] if tree.tokens[child] == token]
            node = children[0] if children else node
    assert counts[0].total() == 40_000
    for node, row in enumerate(rows):
        if counts[node]:
            assert_follows([counts[node][token] for token in range(8)], row)


def test_the_bonus_has_a_coin_of_its_own() -> None:  # case 3
    committed = committed_from_probs([[0.4, 0.3, 0.3]] * 2, star([0]), 100_000)
    assert_follows(first_tokens(committed, 3), [0.4, 0.3, 0.3])


def test_equal_siblings_do_not_count_twice() -> None:  # case 7
    committed = committed_from_probs([[0.5, 0.3, 0.2]] * 3, star([1, 1]), 100_000)
    assert_follows(first_tokens(committed, 3), [0.5, 0.3, 0.2])


def test_a_threshold_below_one_is_another_law() -> None:  # case 8
    committed = committed_from_probs([[0.3, 0.7]] * 2, star([0]), 100_000, threshold_acc=0.5)
    assert_follows(first_tokens(committed, 2), [0.6, 0.4])


def test_the_drafter_does_not_bias_the_law() -> None:  # case 9: min(1, p / q) would accept .8333
    committed = committed_from_probs([[0.5, 0.5]] * 2, star([0]), 100_000)
    accepted = sum(len(tokens) == 2 for tokens in committed)
    assert_follows([accepted, 100_000 - accepted], [0.5, 0.5])
    assert_follows(first_tokens(committed, 2), [0.5, 0.5])


def committed_from_logits(
    logits: torch.Tensor, tree: Tree, steps: int, seed: int = 0, **rule: float
) -> list[int]:
    """The first committed token of each step, counted."""
    counts = [0] * logits.shape[1]
    for step in range(steps):
        drawn, final = coins(seed, step, len(tree.parents))
        verdict = verify(logits, tree, drawn.tolist(), final, **rule)
        first = tree.tokens[verdict.accept_index[1]] if verdict.accept_token_num else verdict.bonus_token_id
        counts[first] += 1
    return counts


def test_sampling_on_the_cpu_follows_the_target() -> None:  # case 12
    probs = [0.35, 0.25, 0.20, 0.10, 0.05, 0.03, 0.015, 0.005]
    tree = star([1, 0, 7])
    counts = committed_from_logits(torch.log(torch.tensor([probs] * 4)), tree, 32_768)
    assert sum(abs(n / 32_768 - p) for n, p in zip(counts, probs, strict=True)) / 2 < 0.02
    assert_follows(counts, probs)


@pytest.mark.parametrize("tree", [star([]), star([2, 0])], ids=["plain", "speculative"])
@pytest.mark.parametrize(
    "rule",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.7},
    ],
)
def test_plain_and_speculative_sampling_share_one_law(tree: Tree, rule: dict[str, float]) -> None:  # case 13
    row = [2.0, 1.5, 1.0, 0.5, 0.0, -0.25, -1.0, -3.0]
    expected, _ = sampled_row(row, **({"temperature": 1.0} | rule))
    logits = torch.tensor([row] * len(tree.parents))
    assert_follows(committed_from_logits(logits, tree, 6_000, **rule), expected)


def test_temperature_does_something() -> None:  # case 26
    counts = committed_from_logits(torch.tensor([[2.0, 1.5, 1.0, 0.5]]), star([]), 4_000)
    assert_follows(counts, [0.4551, 0.2760, 0.1674, 0.1015])
    assert abs(counts[0] / 4_000 - 0.455) < 0.04  # five standard deviations


def test_coins_are_uniform_and_unrelated() -> None:
    """Over nodes, steps and seeds, the final coin beside them."""
    by_node = torch.stack([coins(5, step, 64)[0] for step in range(2_000)])
    by_seed = torch.stack([coins(seed, 0, 64)[0] for seed in range(2_000)])
    finals = torch.tensor([[coins(seed, step, 1)[1] for seed in range(64)] for step in range(2_000)])
    for drawn in (by_node, by_seed, finals):
        assert drawn.min() >= 0
        assert drawn.max() < 1
        counts = torch.histc(drawn, bins=64, min=0, max=1).long().tolist()
        assert_follows(counts, [1 / 64] * 64)
    for first, second in (
        (by_node[:, :-1], by_node[:, 1:]),
        (by_node[:-1], by_node[1:]),
        (by_seed[:-1], by_seed[1:]),
        (by_seed, finals),
        (finals[:, :1], finals[:, 1:2]),
    ):
        pairs = (first * 8).long() * 8 + (second * 8).long()
        assert_follows(torch.bincount(pairs.flatten(), minlength=64).tolist(), [1 / 64] * 64)


def repeat(times: int) -> None:  # case 11
    generator = torch.Generator().manual_seed(1)
    tree = Tree([-1, 0, 0, 1, 2, 3], [0, 11, 12, 13, 14, 15])
    logits = torch.randn(6, 151_936, generator=generator) * 2
    logits[:, 11:16] += 10
    for rule in ({}, {"temperature": 0.7, "top_k": 500, "top_p": 0.95}):
        verdicts = []
        for _ in range(times):
            drawn, final = coins(123, 4, 6)
            verdicts.append(verify(logits, tree, drawn.tolist(), final, **rule))
        assert all(verdict == verdicts[0] for verdict in verdicts)


def test_the_same_seed_gives_the_same_verdict() -> None:
    repeat(20)


@pytest.mark.proof
def test_the_same_seed_gives_the_same_verdict_a_thousand_times() -> None:
    repeat(1_000)
