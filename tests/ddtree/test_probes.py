"""The rank probe and the calibration: by hand, and on samples whose truth is known."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from fakes import FakeDrafter, FakeTarget
from test_statistics import chain, made

from ddtree import trace
from ddtree.decoder import TreeDecoder
from ddtree.probes import EDGES, Bin, calibration, rank_probe
from ddtree.settings import Settings


def ended(
    rank: int | None, walk: list[int] | None = None, rows: int = 3, committed: int | None = None
) -> trace.Step:
    """A chain of two nodes; the bonus has this rank in the row of the walk's last node."""
    step = made([-1, 0, 1], [0, 0], walk or [0], committed)
    assert step.accept is not None
    draft = trace.Draft(
        source="dflash",
        temperature=1.0,
        rows=trace.CandidateRows(top_log_probs=[[-1.0]] * rows, top_token_ids=[[1]] * rows),
    )
    accept = step.accept.model_copy(update={"bonus_draft_rank": rank})
    return step.model_copy(update={"accept": accept, "draft": draft})


def test_ranks_fall_into_classes_that_double() -> None:
    ranks = [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, None]
    found = rank_probe(map(ended, ranks))
    assert found.counts == (1, 1, 2, 2, 2, 2)  # 1 | 2 | 3, 4 | 5, 8 | 9, 16 | 17, 32
    assert (found.beyond, found.undrafted, found.mismatches) == (3, 0, 13)


def test_a_walk_that_ends_below_the_last_row_is_no_mismatch() -> None:
    found = rank_probe([ended(None, [0, 1, 2], rows=2), ended(None, [0, 1, 2], rows=3)])
    assert (found.beyond, found.undrafted) == (1, 1)
    plain = made([-1], [], [0])
    assert rank_probe([plain]).undrafted == 1


def test_a_continuation_that_ends_has_no_row_below() -> None:
    step = ended(None, [0, 1])
    assert step.draft is not None
    for child, beyond in ((-1, 0), (2, 1)):
        rows = step.draft.rows.model_copy(update={"child_rows": [[child], [-1], [-1]]})
        given = step.model_copy(update={"draft": step.draft.model_copy(update={"rows": rows})})
        assert rank_probe([given]).beyond == beyond


def test_a_bonus_that_was_not_committed_is_not_probed() -> None:
    assert rank_probe([ended(0, [0, 1], committed=1)]).mismatches == 0


def test_what_was_reached_is_binned_by_the_drafters_probability() -> None:
    """Root's children .5 and .25, the walk takes the first; of its children .03 (never accepted) is reached,
    and a node below the second child is not."""
    step = made([-1, 0, 0, 1, 2], [0, 1, 0, 0], [0, 1])
    assert step.tree is not None
    tree = step.tree.model_copy(update={"draft_log_probs": [math.log(p) for p in (0.5, 0.25, 0.03, 0.9)]})
    found = calibration([step.model_copy(update={"tree": tree})])
    assert [(bin.low, bin.high) for bin in found] == list(pairwise(EDGES))
    counted = {bin.low: (bin.nodes, bin.agreed, bin.rate) for bin in found if bin.nodes}
    assert counted == {0.02: (1, 0, 0.0), 0.2: (1, 0, 0.0), 0.5: (1, 1, 1.0)}
    assert next(bin for bin in found if bin.low == 0.2).mean_draft_prob == pytest.approx(0.25)


def test_a_certain_draft_lies_in_the_last_bin() -> None:
    step = chain(1, 1)
    assert step.tree is not None
    tree = step.tree.model_copy(update={"draft_log_probs": [1e-7]})
    assert calibration([step.model_copy(update={"tree": tree})])[-1].nodes == 1


@pytest.mark.parametrize(
    ("nodes", "agreed", "low", "high"),
    [(10, 0, 0.0, 0.27753), (10, 5, 0.23659, 0.76341), (100, 96, 0.90163, 0.98434), (1, 1, 0.20654, 1.0)],
)
def test_intervals_are_wilsons(nodes: int, agreed: int, low: float, high: float) -> None:
    """The roots of (p - rate)^2 = z^2 p (1 - p) / n, worked to five digits."""
    assert Bin(0, 1, nodes, agreed).interval == pytest.approx((low, high), abs=2e-5)
    assert Bin(0, 1).interval is None is Bin(0, 1).rate


def test_a_drafter_that_knows_the_target_is_calibrated() -> None:
    """The target samples from the very rows of the drafter (temperature 1): in each bin the rate lies within
    4.5 standard errors of the drafter's mean (false alarms: 12 bins * 7e-6; the seeds are fixed)."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(4, 8, generator=generator) * 1.5
    steps: list[trace.Step] = []
    for seed in range(60):
        start = len("a")  # depth d of the first step continues d tokens after the prompt

        def rows(context: tuple[int, ...], start: int = start) -> list[float]:
            return logits[min(len(context) - start, 3)].tolist()

        decoder = TreeDecoder(
            FakeTarget(rows, 8),
            FakeDrafter(torch.log_softmax(logits, dim=1)),
            Settings(temperature=1.0, seed=seed, budget=30, max_new_tokens=5),
        )
        run = decoder.start("a")
        list(decoder.prefill(run))
        steps.append(decoder.step(run))
    found = [bin for bin in calibration(steps) if bin.nodes]
    assert sum(bin.nodes for bin in found) > 400
    for bin in found:
        assert bin.rate is not None and bin.mean_draft_prob is not None
        error = math.sqrt(bin.mean_draft_prob * (1 - bin.mean_draft_prob) / bin.nodes)
        assert abs(bin.rate - bin.mean_draft_prob) < 4.5 * error


def test_ranks_of_a_real_walk_are_those_of_the_whole_row() -> None:
    """A greedy target that wants token 7 everywhere; the drafter has it as its eighth candidate."""

    def rows(context: tuple[int, ...]) -> list[float]:
        return [0.0] * 7 + [5.0]

    drafted = torch.log_softmax(torch.tensor([[8.0 - i for i in range(8)]] * 2), dim=1)
    settings = Settings(drafter="dflash", budget=3, max_new_tokens=4, seed=1)
    decoder = TreeDecoder(FakeTarget(rows, 8), FakeDrafter(drafted), settings)
    found = rank_probe(list(decoder.decode("a")))
    assert (found.counts, found.beyond) == ((0, 0, 0, 4, 0, 0), 0)
