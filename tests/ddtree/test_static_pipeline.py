"""Steps that are launched one ahead: where a run is cut, what changes in mid-run, what is discarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from devices import DEVICES
from static_runs import (
    LETTERS,
    PADDED,
    PROMPT,
    UNPADDED,
    decode,
    in_every_mode,
    of_step,
    tiny_pair,
    tokens,
    uncaptured,
)
from tiny_models import FAMILIES, twins

from ddtree.decoder import TreeDecoder
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.replay import check_trace
from ddtree.settings import Settings
from ddtree.static_pipeline import Pipeline, StaticMode, is_dense, static_mode
from ddtree.target import Target
from ddtree.trace import Trace

Pair = tuple[Target, DFlashDrafter]


@pytest.fixture(scope="module", params=DEVICES)
def loaded(request: pytest.FixtureRequest) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tiny_pair(device=request.param)
    torch.set_num_threads(threads)


@pytest.fixture
def pair(loaded: Pair) -> Iterator[Pair]:
    """Nothing left over from the test before."""
    loaded[0].idle.clear()
    yield loaded
    loaded[0].stop_token_ids = ()


def settings(**changes: Any) -> Settings:
    return Settings(**{"drafter": "dflash", "seed": 5, "max_new_tokens": 18, **changes})


def steps(trace: Trace) -> list[dict[str, Any]]:
    return [of_step(step) for step in trace.steps]


def reason(trace: Trace) -> str | None:
    return trace.summary and trace.summary.finish_reason


# ---- where a run is cut ----


@in_every_mode
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_token_cuts_inside_a_path(pair: Pair, mode: StaticMode, temperature: float) -> None:
    given = settings(budget=100, temperature=temperature)
    whole = decode(pair, None, given)
    inside = [step for step in whole.steps if step.accept and step.accept.accept_token_num > 1]
    assert inside and inside[0].committed is not None
    pair[0].stop_token_ids = (inside[0].committed.token_ids[0],)
    static, loop = decode(pair, mode, given), decode(pair, None, given)
    assert steps(static) == steps(loop)
    assert reason(static) == reason(loop) == "stop"
    assert tokens(static)[-1] in pair[0].stop_token_ids
    assert check_trace(static) == []


@in_every_mode
def test_the_length_limit_cuts_at_every_place(pair: Pair, mode: StaticMode) -> None:
    longest = tokens(decode(pair, None, settings(budget=100, temperature=1.0)))
    for most in (1, 2, 3, 6):
        static = decode(pair, mode, settings(budget=100, temperature=1.0, max_new_tokens=most))
        assert tokens(static) == longest[:most]
        assert reason(static) == "length"
        assert check_trace(static) == []


# ---- what changes in mid-run ----


@in_every_mode
def test_settings_hold_from_the_next_launch(pair: Pair, mode: StaticMode) -> None:
    """One step is launched ahead: what is changed after step i holds from step i + 2 on."""
    changes = [
        {"temperature": 1.4, "budget": 40},
        {"budget": 100, "top_k": 6},
        {"method": "chain"},
        {"block_size": 3, "budget": 9, "method": "ddtree"},
        {"temperature": 0.0, "top_k": 0},
        {"budget": 3, "threshold_single": 0.7, "temperature": 0.8},
    ]
    static = decode(pair, mode, settings(), changes)
    loop = decode(pair, None, settings(), [{}, *changes])
    assert steps(static) == steps(loop)
    assert [step.settings for step in static.steps] == [step.settings for step in loop.steps]
    assert static.steps[1].settings.budget == 15 and static.steps[2].settings.budget == 40
    assert check_trace(static) == []
    assert static.summary is not None and static.summary.lossy


@in_every_mode
def test_the_way_of_drafting_may_change_at_every_step(pair: Pair, mode: StaticMode) -> None:
    """Out of the static steps and back, and plain decoding in between: the text is plain decoding's."""
    changes: list[dict[str, Any]] = [
        {"drafter": "ngram"},
        {},
        {"drafter": "hybrid", "budget": 20},
        {"drafter": "dflash"},
        {"method": "autoregressive"},
        {},
        {"method": "ddtree"},
        {},
        {"method": "chain"},
        {"budget": "auto"},
        {"drafter": "dflash", "budget": 60, "method": "ddtree"},
        {},
        {"budget": 0},
        {"budget": 7},
    ]
    plain = decode(pair, None, settings(method="autoregressive", max_new_tokens=40))
    static = decode(pair, mode, settings(max_new_tokens=40), changes)
    assert tokens(static) == tokens(plain)
    assert check_trace(static) == []
    sources = [step.draft.source if step.draft else None for step in static.steps]
    assert {"dflash", "ngram", "hybrid", None} <= set(sources)
    staged = [step.timing_ms is not None and step.timing_ms.verify is not None for step in static.steps]
    assert True in staged and False in staged


def test_a_drafter_that_was_away_drafts_as_if_it_had_been_there(pair: Pair) -> None:
    """The context that it catches up with is the one it would have had."""
    away = decode(pair, PADDED, settings(), [{"method": "autoregressive"}, {}, {}, {"method": "ddtree"}])
    there = decode(pair, PADDED, settings())
    drafted = {step.root.position: step.draft for step in there.steps}
    compared = 0
    for step in away.steps[6:]:
        expected = drafted.get(step.root.position)
        if step.draft is not None and expected is not None:
            assert step.draft.rows.top_token_ids[0][:5] == expected.rows.top_token_ids[0][:5]
            assert step.draft.rows.top_log_probs[0][:5] == pytest.approx(
                expected.rows.top_log_probs[0][:5], abs=1e-3
            )
            compared += 1
    assert compared > 3


def test_only_the_total_time_is_known(pair: Pair) -> None:
    for step in decode(pair, PADDED, settings()).steps:
        assert step.timing_ms is not None
        timing = step.timing_ms.model_dump()
        assert timing.pop("total") > 0 and set(timing.values()) == {None}


# ---- what is launched ----


def test_one_step_is_launched_past_the_end_and_discarded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Settings] = []
    launch = Pipeline.launch

    def counted(self: Pipeline, given: Settings) -> None:
        launches.append(given)
        launch(self, given)

    monkeypatch.setattr(Pipeline, "launch", counted)
    decoder = TreeDecoder(*pair, settings(), static=PADDED)
    run = decoder.start(PROMPT)
    list(decoder.prefill(run))
    decoder.step(run)
    assert len(launches) == 2  # the second runs while the first is read
    while run.finish_reason is None:
        decoder.step(run)
    assert len(launches) == run.steps + 1
    assert run.pipeline is None and len(pair[0].idle) == 1


def test_a_cancelled_run_gives_back_what_it_holds(pair: Pair) -> None:
    for _ in TreeDecoder(*pair, settings(), static=PADDED).decode(PROMPT):
        break
    assert len(pair[0].idle) == 1


def test_runs_one_after_another_share_a_pipeline_and_nothing_else(pair: Pair) -> None:
    given = settings(temperature=1.0)
    first = decode(pair, PADDED, given)
    (kept,) = pair[0].idle
    decode(pair, PADDED, settings(temperature=0.5, budget=40), prompt="abc")
    again = decode(pair, PADDED, given)
    assert pair[0].idle == [kept]
    assert steps(first) == steps(again)
    decode(pair, UNPADDED, given)
    assert len(pair[0].idle) == 2  # another way of running


def test_runs_side_by_side_equal_the_same_runs_alone(pair: Pair) -> None:
    given = [(settings(temperature=1.0), PROMPT), (settings(budget=40), "cab"), (settings(), "bbbbb")]
    alone = [steps(decode(pair, PADDED, *[one, (), prompt])) for one, prompt in given]
    decoders = [TreeDecoder(*pair, one, static=PADDED) for one, _ in given]
    runs = [decoder.decode(prompt) for decoder, (_, prompt) in zip(decoders, given, strict=True)]
    together: list[list[dict[str, Any]]] = [[] for _ in runs]
    while any(len(done) < len(solo) for done, solo in zip(together, alone, strict=True)):
        for done, run in zip(together, runs, strict=True):
            step = next(run, None)
            if step is not None:
                done.append(of_step(step))
    assert together == alone


# ---- faults ----


@uncaptured
@pytest.mark.parametrize("method", ["ddtree", "chain"])
def test_a_faulty_draft_ends_the_run_and_names_the_depth(
    pair: Pair, mode: StaticMode, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = pair[1]
    right = drafter._head

    def spoilt(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden).clone()
        logits[2, 3] = torch.nan
        return logits

    given = settings(method=method)
    before = steps(decode(pair, mode, given))
    with monkeypatch.context() as patch:
        patch.setattr(drafter, "_head", spoilt)
        static, loop = decode(pair, mode, given), decode(pair, None, given)
    for trace in (static, loop):
        assert reason(trace) == "error" and len(trace.steps) == 1
        error = trace.steps[0].error
        assert error is not None and (error.code, error.depth) == ("draft_fault", 3)
        assert trace.steps[0].tree is None
    assert static.steps[0].error == loop.steps[0].error
    assert check_trace(static) == []
    assert steps(decode(pair, mode, given)) == before  # nothing of it is left


@uncaptured
def test_a_faulty_target_ends_the_run_and_names_the_node(
    pair: Pair, mode: StaticMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = pair[0].score
    calls = []

    def spoilt(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits, features = right(*arguments)
        calls.append(1)
        if len(calls) < 3:
            return logits, features
        return torch.full_like(logits, torch.nan), torch.full_like(features, torch.nan)

    given = settings()
    before = steps(decode(pair, mode, given))
    with monkeypatch.context() as patch:
        patch.setattr(pair[0], "score", spoilt)
        trace = decode(pair, mode, given)
    assert reason(trace) == "error" and len(trace.steps) == 3
    error, last = trace.steps[-1].error, trace.steps[-1]
    assert error is not None and error.code == "target_fault"
    assert "node 0 holds NaN" in error.message
    assert last.tree is not None and last.accept is None
    assert check_trace(trace) == []
    assert steps(decode(pair, mode, given)) == before


# ---- who takes this way ----


def test_a_cpu_keeps_the_loop_and_a_mixture_of_experts_stays_outside(pair: Pair) -> None:
    if pair[0].device.type == "cuda":
        pytest.skip("of a CPU")
    assert static_mode(pair[0]) is None
    assert is_dense(pair[0])
    assert not is_dense(twins(*FAMILIES["qwen3_moe: experts"])[0])
    decoder = TreeDecoder(*pair, Settings(max_new_tokens=3))
    assert decoder.resolve(Settings()).drafter == "hybrid"
    assert decoder.start(PROMPT).pipeline is None


def test_where_steps_are_static_the_first_choice_is_the_drafter_that_they_run(pair: Pair) -> None:
    decoder = TreeDecoder(*pair, static=PADDED)
    assert decoder.resolve(Settings()).drafter == "dflash"
    assert list(decoder.drafters) == ["hybrid", "dflash", "ngram"]


def test_without_a_dflash_drafter_nothing_is_static(pair: Pair) -> None:
    decoder = TreeDecoder(pair[0], None, settings(drafter=None), static=PADDED)
    assert [step.draft for step in decoder.decode("abcd" * 3)]
    assert decoder.resolve(Settings()).drafter == "ngram"
    assert pair[0].idle == []


def test_the_capacity_holds_the_largest_tree_behind_the_longest_run(pair: Pair) -> None:
    given = settings(budget=300, max_new_tokens=6, temperature=1.3)
    assert steps(decode(pair, PADDED, given)) == steps(decode(pair, None, given))
    assert LETTERS < 300
