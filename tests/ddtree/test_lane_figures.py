"""Runs side by side: where two texts part, and what the target gave both tokens there."""

from __future__ import annotations

import math

import pytest

from ddtree import trace
from ddtree.lanes import Given, Side, given, parting, sides, tokens_per_second
from ddtree.settings import Settings
from ddtree.statistics import Statistics


def text(*token_ids: int) -> list[Side]:
    return [Side(token, f"t{token}", step, 0) for step, token in enumerate(token_ids)]


def test_two_texts_part_at_their_first_difference() -> None:
    assert parting(text(1, 2, 3), text(1, 2, 3)) is None
    found = parting(text(1, 2, 3, 9), text(1, 2, 4, 9))
    assert found is not None and found.index == 2
    assert (found.left, found.right) == (Side(3, "t3", 2, 0), Side(4, "t4", 2, 0))


def test_a_text_that_has_ended_has_no_token_there() -> None:
    found = parting(text(1, 2), text(1, 2, 3))
    assert found is not None and (found.index, found.left) == (2, None)
    assert found.right == Side(3, "t3", 2, 0)
    assert parting([], []) is None


@pytest.mark.parametrize(
    ("seen", "margin"),
    [
        (Given(0.5, 0.25), math.log(2)),
        (Given(0.25, 0.25), 0.0),
        (Given(None, 0.5), None),
        (Given(0.5, 0.0), None),
    ],
)
def test_the_margin_is_the_difference_of_two_logits(seen: Given, margin: float | None) -> None:
    assert seen.margin == (None if margin is None else pytest.approx(margin))


def step() -> trace.Step:
    """Root 0 with child 1 (token 5), which has child 2 (token 6); both accepted, then bonus 7. The target's
    rows of the root and of node 1 are recorded with two tokens each."""

    def row(node: int, token_ids: list[int], raw: list[float]) -> trace.TargetRow:
        return trace.TargetRow(
            node=node,
            token_ids=token_ids,
            texts=["t"] * len(raw),
            probs=raw,
            raw_probs=raw,
            draft_token_ids=[],
            draft_texts=[],
            draft_probs=[],
            entropy=1.0,
            total_variation=None,
        )

    return trace.Step(
        index=3,
        root=trace.Root(token_id=0, text="r", position=0),
        settings=Settings(),
        tree=trace.Tree(
            token_ids=[5, 6, 8],
            texts=["a", "b", "c"],
            parents=[-1, 0, 1, 1],
            depths=[1, 2, 2],
            ranks=[0, 0, 1],
            row=[0, 1, 1],
            log_weights=[-1.0, -2.0, -3.0],
            draft_log_probs=[-1.0, -1.0, -2.0],
            origin=["dflash"] * 3,
        ),
        target=trace.TargetScores(
            probs=[0.5, 0.25, 0.01],
            raw_probs=[0.5, 0.25, 0.01],
            rows=[row(0, [5, 9], [0.5, 0.4]), row(1, [6, 5], [0.25, 0.125])],
        ),
        accept=trace.Accept(
            accept_index=[0, 1, 2],
            accept_token_num=2,
            bonus_token_id=7,
            bonus_text="d",
            bonus_source="full_row",
            bonus_prob=0.5,
            bonus_cumulative=0.5,
            residual_mass=1.0,
            bonus_draft_rank=None,
        ),
        committed=trace.Committed(token_ids=[5, 6, 7], texts=["a", "b", "d"]),
    )


def test_what_the_target_gave_is_read_where_the_token_was_decided() -> None:
    assert given(step(), 0, 5, 9) == Given(0.5, 0.4)
    assert given(step(), 1, 6, 5) == Given(0.25, 0.125)
    assert given(step(), 1, 6, 8) == Given(0.25, 0.01)  # a drafted child that the row does not list
    assert given(step(), 1, 6, 77) == Given(0.25, None)
    assert given(step(), 2, 7, 5) == Given(None, None)  # the row of node 2 was not recorded
    assert given(step().model_copy(update={"target": None}), 0, 5, 9) == Given(None, None)


def test_sides_are_the_committed_tokens_in_their_places() -> None:
    assert sides(step()) == [Side(5, "a", 3, 0), Side(6, "b", 3, 1), Side(7, "d", 3, 2)]
    assert sides(step().model_copy(update={"committed": None})) == []


def test_speed_is_committed_tokens_by_measured_time() -> None:
    assert tokens_per_second(Statistics()) is None
    assert tokens_per_second(Statistics(steps=2, committed=6, stage_ms={"total": 30.0})) == 200.0
