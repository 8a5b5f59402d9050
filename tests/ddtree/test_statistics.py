"""Acceptance accounting: by hand on small trees, and against a second way of counting on exported traces."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour

from ddtree import trace
from ddtree.decoder import TreeDecoder
from ddtree.settings import Settings
from ddtree.statistics import Statistics, pooled, run_statistics, step_statistics


def made(parents: list[int], ranks: list[int], walk: list[int], committed: int | None = None) -> trace.Step:
    """A step whose walk is `walk`, root first; `committed` tokens of it and its bonus were kept."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    count = len(ranks)
    kept = len(walk) if committed is None else committed
    return trace.Step(
        index=0,
        root=trace.Root(token_id=0, text="r", position=0),
        settings=Settings(),
        tree=trace.Tree(
            token_ids=list(range(1, count + 1)),
            texts=["t"] * count,
            parents=parents,
            depths=depths[1:],
            ranks=ranks,
            row=[depth - 1 for depth in depths[1:]],
            log_weights=[-1.0] * count,
            draft_log_probs=[-1.0] * count,
            origin=["dflash"] * count,
        ),
        accept=trace.Accept(
            accept_index=walk,
            accept_token_num=len(walk) - 1,
            bonus_token_id=99,
            bonus_text="b",
            bonus_source="residual",
            bonus_prob=0.5,
            bonus_cumulative=0.5,
            residual_mass=0.5,
            bonus_draft_rank=None,
        ),
        committed=trace.Committed(token_ids=[1] * kept, texts=["t"] * kept),
        timing_ms=trace.Timing(
            draft=1.0, build=None, encode=0.5, verify=6.0, sample=0.25, commit=0.25, other=0.0, total=8.0
        ),
    )


def chain(length: int, accepted: int) -> trace.Step:
    return made([-1, *range(length)], [0] * length, list(range(accepted + 1)))


def test_rates_by_depth_of_a_chain() -> None:
    """Accepted 0, 3, 1 and 2 of three drafts each."""
    found = run_statistics(chain(3, accepted) for accepted in (0, 3, 1, 2))
    assert [depth.unconditional for depth in found.by_depth()] == [0.75, 0.5, 0.25]
    assert [depth.conditional for depth in found.by_depth()] == [0.75, pytest.approx(2 / 3), 0.5]
    assert (found.steps, found.accepted_drafts, found.committed) == (4, 6, 10)
    assert (found.tau, found.accepted_depth, found.acceptance_rate) == (2.5, 1.5, 0.5)


def test_three_of_fifteen_drafted_positions_are_a_fifth() -> None:
    assert step_statistics(chain(15, 3)).acceptance_rate == 0.2


def test_rates_pool_tokens_over_steps() -> None:
    """One of one and three of nine are 4 of 10, not the mean of 1 and 1/3."""
    found = run_statistics([chain(1, 1), chain(9, 3)])
    assert found.acceptance_rate == 0.4


def test_a_tree_is_counted_by_depth_and_rank() -> None:
    """Root 0 with children 1, 2, 3 (ranks 0, 1, 3); 2 has 4 and 5 (ranks 0, 2); 1 has 6. The walk takes 2,
    then 5, then nothing."""
    found = step_statistics(made([-1, 0, 0, 0, 2, 2, 1], [0, 1, 3, 0, 2, 0], [0, 2, 5]))
    assert found.proposed == ((1, 1, 0, 1), (2, 0, 1))
    assert found.reached == ((1, 1, 0, 1), (1, 0, 1))
    assert found.accepted == ((0, 1, 0, 0), (0, 0, 1))
    assert (found.nodes, found.positions, found.accepted_drafts) == (6, 2, 2)
    assert found.node_efficiency == pytest.approx(1 / 3)
    assert [(rank.reached, rank.accepted) for rank in found.by_rank()] == [(2, 0), (1, 1), (1, 1), (1, 0)]
    assert [[cell.conditional for cell in row] for row in found.by_depth_and_rank()] == [
        [0.0, 1.0, None, 0.0],
        [0.0, None, 1.0],
    ]


@pytest.mark.parametrize(
    ("committed", "accepted", "depth_reached", "depth_accepted"),
    [
        (1, 1, (1,), (1, 0, 0)),  # a stop token at depth 1, or a limit
        (3, 3, (1, 1, 1), (1, 1, 1)),  # the whole path, without the bonus
        (4, 3, (1, 1, 1, 1), (1, 1, 1)),
    ],
)
def test_what_lies_beyond_a_cut_does_not_count(
    committed: int, accepted: int, depth_reached: tuple[int, ...], depth_accepted: tuple[int, ...]
) -> None:
    found = step_statistics(made([-1, 0, 1, 2], [0, 0, 0], [0, 1, 2, 3], committed))
    assert (found.committed, found.accepted_drafts) == (committed, accepted)
    assert (found.depth_reached, found.depth_accepted) == (depth_reached, depth_accepted)
    assert found.reached == tuple((int(depth < committed),) for depth in range(3))
    assert [depth.reached for depth in found.by_depth()] == [int(depth < committed) for depth in range(3)]


def test_a_step_that_drafted_nothing_reached_depth_one_and_accepted_nothing() -> None:
    (first,) = run_statistics([chain(1, 1), made([-1], [], [0])]).by_depth()
    assert (first.reached, first.accepted, first.conditional, first.unconditional) == (2, 1, 0.5, 0.5)


def test_a_failed_step_counts_nothing() -> None:
    step = trace.Step(
        index=0,
        root=trace.Root(token_id=0, text="r", position=0),
        settings=Settings(),
        error=trace.StepError(code="draft_fault", message="NaN"),
    )
    assert step_statistics(step) == Statistics()


def test_nothing_has_no_rates() -> None:
    nothing = run_statistics([])
    assert nothing.tau is nothing.accepted_depth is nothing.acceptance_rate is nothing.node_efficiency is None
    assert nothing.stage_means() == {}
    plain = step_statistics(made([-1], [], [0]))
    assert (plain.tau, plain.acceptance_rate, plain.by_depth()) == (1.0, None, [])


def test_stages_are_means_of_a_step_and_untimed_ones_are_left_out() -> None:
    means = run_statistics([chain(2, 1), chain(2, 0)]).stage_means()
    assert means == {
        "draft": 1.0, "encode": 0.5, "verify": 6.0, "sample": 0.25, "commit": 0.25, "other": 0.0, "total": 8.0
    }  # fmt: skip


def run(settings: Settings) -> tuple[list[trace.Step], str]:
    """A run of a target that likes what the drafter drafts, often enough: steps and the exported file."""

    def rows(context: tuple[int, ...]) -> list[float]:
        logits = torch.randn(8, generator=torch.Generator().manual_seed(sum(context) * 31 + len(context)))
        logits[[5, 2, 6, 3][len(context) % 4]] += 1.5
        return logits.tolist()

    drafter = FakeDrafter(favour(5, 2, 6, 3))
    decoder = TreeDecoder(FakeTarget(rows, 8, stop=(1,)), drafter, settings)
    steps = list(decoder.decode("a"))
    return steps, decoder.trace().to_json()


def recounted(exported: str) -> dict[str, Any]:
    """The same counters from the file alone: the committed tokens are led down each tree by their ids, and
    the decoder's own account of its walk is not looked at."""
    proposed, reached, accepted = Counter(), Counter(), Counter()
    depths_reached, depths_accepted = Counter(), Counter()
    steps = tokens = 0
    for step in json.loads(exported)["steps"]:
        tree = step["tree"]
        steps += 1
        tokens += len(step["committed"]["token_ids"])
        cells = dict(enumerate(zip(tree["depths"], tree["ranks"], strict=True), 1))
        proposed.update(cells.values())
        at: int | None = 0
        for depth, token in enumerate(step["committed"]["token_ids"], 1):
            assert at is not None, "a token follows the bonus"
            depths_reached[depth] += 1
            children = {tree["token_ids"][i - 1]: i for i in cells if tree["parents"][i] == at}
            reached.update(cells[i] for i in children.values())
            at = children.get(token)
            if at is not None:
                accepted[cells[at]] += 1
                depths_accepted[depth] += 1
    return {
        "steps": steps,
        "tokens": tokens,
        "cells": [dict(+counter) for counter in (proposed, reached, accepted)],
        "depths": [dict(+counter) for counter in (depths_reached, depths_accepted)],
    }


def spread(found: Statistics) -> dict[str, Any]:
    """Statistics in the recount's form."""
    cells = [
        {(d, r): n for d, row in enumerate(table, 1) for r, n in enumerate(row) if n}
        for table in (found.proposed, found.reached, found.accepted)
    ]
    depths = [
        {d: n for d, n in enumerate(row, 1) if n} for row in (found.depth_reached, found.depth_accepted)
    ]
    return {"steps": found.steps, "tokens": found.committed, "cells": cells, "depths": depths}


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 15},
        {"budget": 40},
        {"method": "chain", "budget": 3},
        {"budget": 15, "drafter": "ngram"},
        {"budget": 0},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_an_exported_trace_counted_another_way_gives_the_same(
    settings: dict[str, Any], temperature: float
) -> None:
    total, accepted = Statistics(), 0
    for seed in range(6):
        steps, exported = run(Settings(temperature=temperature, seed=seed, max_new_tokens=21, **settings))
        found = run_statistics(steps)
        assert spread(found) == recounted(exported)
        summary = json.loads(exported)["summary"]
        assert (found.tau, found.accepted_drafts) == (summary["tau"], summary["accepted_drafts"])
        assert sum(map(sum, found.accepted)) == found.accepted_drafts
        total, accepted = total + found, accepted + found.accepted_drafts
    assert total.accepted_drafts == accepted > 0 or settings["budget"] == 0
    unconditional = sum(depth.unconditional or 0.0 for depth in total.by_depth())
    assert unconditional == pytest.approx(total.accepted_depth)


def test_parts_add_up_to_the_whole() -> None:
    steps, _ = run(Settings(temperature=1, seed=3, budget=15, max_new_tokens=40))
    whole, parts = run_statistics(steps), pooled([run_statistics(steps[:3]), run_statistics(steps[3:])])
    assert spread(parts) == spread(whole)
    assert parts.stage_means() == pytest.approx(whole.stage_means())
