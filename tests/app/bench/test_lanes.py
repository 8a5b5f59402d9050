"""The spelling of lanes."""

from __future__ import annotations

import pytest

from app.bench.lanes import DEFAULT_ACCEPTANCE_LANES, DEFAULT_LANES, parse_lane, parse_lanes


def test_a_lane_of_this_project_is_settings() -> None:
    lane = parse_lane("ddtree:budget=31,top-p=0.9,drafter=ngram")
    assert lane.settings is not None
    assert lane.settings.model_dump(include={"method", "drafter", "budget", "top_p"}) == {
        "method": "ddtree", "drafter": "ngram", "budget": 31, "top_p": 0.9
    }  # fmt: skip
    assert lane.label == "ddtree:drafter=ngram,budget=31,top-p=0.9"


def test_spellings_of_one_lane_have_one_label() -> None:
    texts = ("chain:budget=7,block_size=4", "chain:block-size=4,budget=7")
    assert {parse_lane(text).label for text in texts} == {"chain:budget=7,block-size=4"}


def test_baselines_have_no_settings() -> None:
    lookup = parse_lane("prompt-lookup:tokens=5")
    assert (lookup.settings, lookup.lookup_tokens, lookup.label) == (None, 5, "prompt-lookup:tokens=5")
    assert parse_lane("prompt-lookup").lookup_tokens == 10
    assert parse_lane("generate").settings is None
    assert parse_lane("dflash-generate:draft-model=a/b").draft_model == "a/b"
    assert parse_lane("dflash-generate").draft_model is None


def test_only_the_bare_autoregressive_lane_is_what_others_are_compared_with() -> None:
    assert parse_lane("autoregressive").plain
    assert not parse_lane("autoregressive:top-p=0.9").plain
    assert not parse_lane("generate").plain


def test_a_lane_may_leave_the_budget_to_every_step() -> None:
    lane = parse_lane("ddtree:budget=auto")
    assert lane.settings is not None
    assert (lane.settings.budget, lane.label) == ("auto", "ddtree:budget=auto")


def test_the_default_lanes_can_be_parsed() -> None:
    assert [lane.label for lane in parse_lanes(list(DEFAULT_LANES))] == list(DEFAULT_LANES)
    assert [lane.label for lane in parse_lanes(list(DEFAULT_ACCEPTANCE_LANES))] == ["ddtree"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tree", "lane 'tree': there is no 'tree'; take one of ddtree, chain, autoregressive, generate"),
        ("ddtree:budget", "lane 'ddtree:budget': 'budget' must be written KEY=VALUE"),
        (
            "ddtree:budget=-1",
            "lane 'ddtree:budget=-1': budget cannot be -1: input should be an integer from 0",
        ),
        ("ddtree:drafter=oracle", "lane 'ddtree:drafter=oracle': drafter cannot be 'oracle'"),
        ("ddtree:temperature=1", "'temperature' is no setting of a lane; take one of drafter, budget"),
        ("generate:budget=3", "lane 'generate:budget=3': 'budget' is not known; generate takes no keys"),
        ("dflash-generate:tokens=3", "'tokens' is not known; dflash-generate takes draft-model"),
        ("prompt-lookup:tokens=0", "tokens must be an integer of at least 1, not 0"),
    ],
)
def test_what_is_no_lane_is_said_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_lane(text)
    assert message in str(caught.value)


def test_a_lane_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'chain:block-size=4,budget=7' is given twice"):
        parse_lanes(["chain:block-size=4,budget=7", "chain:budget=7,block-size=4"])
