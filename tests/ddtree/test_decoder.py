"""The decode loop's own logic, on a target and a drafter whose numbers are written down here."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour, follow

from ddtree.decoder import TreeDecoder
from ddtree.prompt import SettingsError
from ddtree.replay import check_trace
from ddtree.run import cut_committed
from ddtree.settings import DrafterName, Settings
from ddtree.trace import Trace
from ddtree.trace_file import load_trace

PROMPT = "a"  # one token, id 0


def decode(
    target: FakeTarget, drafter: FakeDrafter | None, /, prompt: str = PROMPT, **settings: object
) -> tuple[list[int], Trace]:
    decoder = TreeDecoder(target, drafter, Settings.model_validate(settings))
    steps = list(decoder.decode(prompt))
    trace = decoder.trace()
    assert check_trace(load_trace(trace.to_json().encode())) == []
    return [token for step in steps if step.committed for token in step.committed.token_ids], trace


# ---- what is committed ----


@pytest.mark.parametrize(
    ("path", "room", "committed", "reason"),
    [
        ([10, 11, 99, 20, 21, 22], 5, [10, 11, 99], "stop"),
        ([10, 11, 12, 13, 14, 15, 99], 5, [10, 11, 12, 13, 14], "length"),
        ([10, 11, 12, 13, 99], 5, [10, 11, 12, 13, 99], "stop"),
        ([10, 11, 12, 13, 14], 5, [10, 11, 12, 13, 14], "length"),
        ([10, 11], 5, [10, 11], None),
        ([99], 1, [99], "stop"),
    ],
)
def test_a_stop_token_beats_the_length_limit(
    path: list[int], room: int, committed: list[int], reason: str | None
) -> None:
    assert cut_committed(path, [99], room) == (committed, reason)


def test_ids_texts_counters_and_cache_are_cut_at_the_same_token() -> None:
    target = FakeTarget(follow([1, 2, 3, 4, 5]), 8, stop=[3])
    decoder = TreeDecoder(target, FakeDrafter(favour(1, 2, 3, 4, 5)), Settings(budget=5, max_new_tokens=50))
    run = decoder.start(PROMPT)
    list(decoder.prefill(run))
    step = decoder.step(run)
    assert step.accept is not None and step.committed is not None
    assert step.accept.accept_index == [0, 1, 2, 3, 4, 5]  # the whole path is kept
    assert step.accept.accept_token_num == 5
    assert step.committed.token_ids == [1, 2, 3]
    assert step.committed.texts == ["b", "c", "d"]
    assert run.finish_reason == "stop"
    assert run.cache.rows == [(0, 0), (1, 1), (2, 2)]  # all but the last committed token
    summary = decoder.summary(run)
    assert (summary.committed, summary.accepted_drafts, summary.tau) == (3, 3, 3.0)


def test_the_length_limit_cuts_inside_a_path() -> None:
    tokens, trace = decode(
        FakeTarget(follow([1, 2, 3, 4, 5, 6]), 8), FakeDrafter(favour(1, 2, 3, 4)), budget=4, max_new_tokens=3
    )
    assert tokens == [1, 2, 3]
    assert trace.summary is not None and trace.summary.finish_reason == "length"


def test_the_first_token_appears_once_in_step_0_also_for_a_prompt_of_one_token() -> None:
    tokens, trace = decode(FakeTarget(follow([4, 5, 6]), 8), None, method="autoregressive", max_new_tokens=3)
    assert tokens == [4, 5, 6]
    assert trace.steps[0].root.token_id == 0 and trace.steps[0].root.position == 0
    assert trace.steps[0].committed is not None and trace.steps[0].committed.token_ids == [4]


def test_a_long_prompt_is_prefilled_without_its_last_token() -> None:
    target = FakeTarget(follow([9] * 20, 12), 12)
    decoder = TreeDecoder(target, None, Settings(method="autoregressive"))
    run = decoder.start("abcde")
    assert list(decoder.prefill(run)) == [0.5, 1.0]
    assert run.cache.rows == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert decoder.step(run).root.position == 4


# ---- trees ----


def test_positions_are_root_position_plus_depth() -> None:
    target = FakeTarget(follow([1, 2, 3, 4, 5, 6, 7, 1]), 8)
    decoder = TreeDecoder(target, FakeDrafter(favour(1, 2)), Settings(budget=6, max_new_tokens=1))
    list(decoder.decode("abc"))
    trace = decoder.trace()
    assert trace.steps[0].tree is not None
    assert target.passes[0]["positions"] == [2, *(2 + depth for depth in trace.steps[0].tree.depths)]
    assert set(trace.steps[0].tree.depths) == {1, 2}


@pytest.mark.parametrize("drafter", ["dflash", "hybrid"])
@pytest.mark.parametrize("method", ["ddtree", "chain", "autoregressive"])
@pytest.mark.parametrize("budget", [0, 1, 3, 7, 20])
def test_greedy_text_does_not_depend_on_method_drafter_or_budget(
    method: str, budget: int, drafter: str
) -> None:
    def rows(context: tuple[int, ...]) -> list[float]:
        generator = torch.Generator().manual_seed(hash(context) % 2**31)
        return torch.randn(8, generator=generator).tolist()

    plain, _ = decode(FakeTarget(rows, 8), None, method="autoregressive", max_new_tokens=20)
    drafted, trace = decode(
        FakeTarget(rows, 8),
        FakeDrafter(favour(3, 1, 6)),
        method=method,
        budget=budget,
        drafter=drafter,
        max_new_tokens=20,
    )
    assert drafted == plain
    nodes = [len(step.tree.token_ids) for step in trace.steps if step.tree]
    deepest = {"dflash": 3, "hybrid": 10}[drafter]
    most = {"ddtree": min(budget, 8 + 64 + 512), "chain": min(budget, deepest), "autoregressive": 0}[method]
    assert max(nodes) == most


def test_a_chain_is_the_most_likely_path() -> None:
    _, trace = decode(
        FakeTarget(follow([1, 2, 3]), 8), FakeDrafter(favour(1, 5, 6)), method="chain", max_new_tokens=1
    )
    tree = trace.steps[0].tree
    assert tree is not None
    assert (tree.token_ids, tree.parents, tree.depths) == ([1, 5, 6], [-1, 0, 1, 2], [1, 2, 3])


def test_accepted_tokens_by_step() -> None:
    """k = 3 drafted each time, [3, 0, 1] accepted: 4 of 9, pooled; tau = (4 + 3 bonus) / 3 steps."""
    text = [1, 2, 3, 4, 5, 1, 6]
    _, trace = decode(
        FakeTarget(follow(text), 8), FakeDrafter(favour(1, 2, 3)), method="chain", max_new_tokens=7
    )
    assert [step.accept.accept_token_num for step in trace.steps if step.accept] == [3, 0, 1]
    assert trace.summary is not None
    assert trace.summary.accepted_drafts == 4
    assert trace.summary.tau == pytest.approx(7 / 3)


@pytest.mark.parametrize("drafter", ["dflash", "hybrid"])
def test_a_tree_never_reaches_past_the_context(drafter: str) -> None:
    target = FakeTarget(follow([1] * 20), 8, max_context=6)
    tokens, _ = decode(target, FakeDrafter(favour(1, 1, 1)), budget=7, drafter=drafter, max_new_tokens=5)
    assert tokens == [1] * 5
    assert max(max(p["positions"]) for p in target.passes) == 5


def test_a_hybrid_tree_is_deeper_than_the_dflash_block_and_knows_where_its_nodes_are_from() -> None:
    """After `abcdefg` and `a` the continuation is the text itself; the drafter's two positions expect h."""
    text = [1, 2, 3, 4, 5, 6]
    target = FakeTarget(follow([*text, 0, *text, 0]), 8)
    _, trace = decode(target, FakeDrafter(favour(7, 7)), prompt="abcdefga", budget=9, max_new_tokens=7)
    step = trace.steps[0]
    assert step.settings.drafter == "hybrid" and trace.drafter.kind == "hybrid"
    assert step.draft is not None and step.tree is not None and step.accept is not None
    assert (step.draft.source, step.accept.accept_token_num) == ("hybrid", 6)
    nodes = list(zip(step.tree.depths, step.tree.token_ids, step.tree.origin, strict=True))
    assert [(depth, token) for depth, token, origin in nodes if origin == "ngram"] == [
        *enumerate(text, start=1)
    ]
    assert {(depth, token) for depth, token, origin in nodes if origin == "dflash"} == {(1, 7), (2, 7)}
    assert step.target is not None
    known = [row.total_variation is not None for row in step.target.rows]
    assert known == [True] * 2 + [False] * 5


# ---- settings in mid-run ----


def test_a_drafter_switched_to_in_mid_run_drafts_as_if_it_had_been_there() -> None:
    """Each step's tree is that of a run which begins with the text so far."""
    names: tuple[DrafterName, ...] = ("hybrid", "dflash", "ngram", "hybrid", "hybrid", "ngram")

    def rows(context: tuple[int, ...]) -> list[float]:
        generator = torch.Generator().manual_seed(sum(context[-2:]))
        return torch.randn(8, generator=generator).tolist()

    decoder = TreeDecoder(FakeTarget(rows, 8), FakeDrafter(favour(6, 5)), Settings(budget=6))
    text, steps = PROMPT, decoder.decode(PROMPT)
    for name in names:
        decoder.settings = decoder.settings.updated(drafter=name)
        step = next(steps)
        fresh = TreeDecoder(FakeTarget(rows, 8), FakeDrafter(favour(6, 5)), Settings(budget=6, drafter=name))
        assert step.tree == next(fresh.decode(text)).tree
        assert step.committed is not None
        text += "".join(step.committed.texts)
    steps.close()


def test_settings_hold_from_the_next_step_on() -> None:
    target = FakeTarget(follow([6] * 40), 8)
    decoder = TreeDecoder(target, FakeDrafter(favour(1, 2)), Settings(budget=2, max_new_tokens=8))
    sizes = []
    for step in decoder.decode(PROMPT):
        assert step.tree is not None
        sizes.append((len(step.tree.token_ids), step.settings.budget, step.settings.temperature))
        if step.index == 1:
            decoder.settings = decoder.settings.updated(budget=5, temperature=0.5)
        if step.index == 2:
            decoder.settings = decoder.settings.updated(method="autoregressive")
    assert sizes[:4] == [(2, 2, 0.0), (2, 2, 0.0), (5, 5, 0.5), (0, 5, 0.5)]


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 5), ("max_new_tokens", 9), ("chat", True), ("system", "x")]
)
def test_what_holds_for_a_whole_run_cannot_change_in_it(name: str, value: object) -> None:
    decoder = TreeDecoder(FakeTarget(follow([1]), 8), None, Settings(max_new_tokens=8))
    run = decoder.start(PROMPT)
    with pytest.raises(SettingsError) as caught:
        decoder.settings = decoder.settings.updated(**{name: value})
    assert (caught.value.code, caught.value.field) == ("not_live", name)
    run.cancel()
    if name != "chat":
        decoder.settings = decoder.settings.updated(**{name: value})


def test_a_setting_that_cannot_be_honoured_is_named() -> None:
    decoder = TreeDecoder(FakeTarget(follow([1]), 8), None, not_used="no drafter was trained for it")
    with pytest.raises(SettingsError, match="dflash is not loaded: no drafter was trained for it") as caught:
        decoder.settings = Settings(drafter="dflash")
    assert caught.value.field == "drafter"
    decoder = TreeDecoder(FakeTarget(follow([1]), 8), FakeDrafter(favour(1, 2)))
    for drafter, size in (("dflash", 3), ("hybrid", 11)):
        with pytest.raises(SettingsError, match=f"block_size {size + 1} is more than the {size}") as caught:
            decoder.settings = Settings.model_validate({"drafter": drafter, "block_size": size + 1})
        assert caught.value.field == "block_size"
    with pytest.raises(SettingsError, match="no chat template") as caught:
        decoder.settings = Settings(chat=True)
    assert caught.value.field == "chat"


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "code", "field"),
    [
        ("", 5, "bad_value", "prompt"),
        ("a" * 20, 5, "prompt_too_long", "prompt"),
        ("aaa", 14, "bad_value", "max_new_tokens"),
    ],
)
def test_a_prompt_that_does_not_fit(prompt: str, max_new_tokens: int, code: str, field: str) -> None:
    target = FakeTarget(follow([1]), 8, max_context=16)
    decoder = TreeDecoder(target, None, Settings(max_new_tokens=max_new_tokens))
    with pytest.raises(SettingsError) as caught:
        decoder.start(prompt)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_why_no_drafter_is_used_stands_in_the_trace() -> None:
    target = FakeTarget(follow([1]), 8)
    decoder = TreeDecoder(target, None, Settings(max_new_tokens=1), not_used="it belongs to another model")
    list(decoder.decode(PROMPT))
    assert decoder.trace().drafter.kind == "ngram"
    assert decoder.trace().drafter.not_used == "it belongs to another model"


# ---- sampling ----


@pytest.mark.parametrize("name", ["dflash", "hybrid"])
def test_temperature_samples_from_the_softmax(name: DrafterName) -> None:
    """Logits [2, 1.5, 1, .5] at temperature 1: 45.5 % of first tokens are 0. 4,000 seeds; a true sampler
    leaves the 4-sigma band of each token once in 4,000 tests. The hybrid has a continuation: d after a."""
    logits = [2.0, 1.5, 1.0, 0.5]
    target = FakeTarget(lambda context: logits, 4)
    drafter = FakeDrafter(torch.log_softmax(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), dim=1))
    decoder = TreeDecoder(target, drafter, Settings(temperature=1, budget=2, max_new_tokens=1, drafter=name))
    counts = [0] * 4
    draws = 4000
    for seed in range(draws):
        decoder.settings = decoder.settings.updated(seed=seed)
        run = decoder.start("ada")
        list(decoder.prefill(run))
        step = decoder.step(run)
        assert step.committed is not None
        counts[step.committed.token_ids[0]] += 1
    total = sum(math.exp(value) for value in logits)
    for count, value in zip(counts, logits, strict=True):
        p = math.exp(value) / total
        assert abs(count / draws - p) < 4 * math.sqrt(p * (1 - p) / draws)


def test_a_run_repeats_with_its_seed_and_differs_without_one() -> None:
    def once(**settings: object) -> list[int]:
        target = FakeTarget(lambda context: [0.0] * 8, 8)
        return decode(target, FakeDrafter(favour(1, 2)), temperature=1, max_new_tokens=24, **settings)[0]

    assert once(seed=1) == once(seed=1)
    assert once(seed=1) != once(seed=2)
    assert once() != once()  # equal by chance: 8 ** -24


def test_a_drawn_seed_is_recorded_and_repeats_the_run() -> None:
    target = FakeTarget(lambda context: [0.0] * 8, 8)
    first, trace = decode(target, FakeDrafter(favour(1, 2)), temperature=1, max_new_tokens=16)
    assert trace.settings.seed is not None
    again, _ = decode(
        target, FakeDrafter(favour(1, 2)), temperature=1, max_new_tokens=16, seed=trace.settings.seed
    )
    assert again == first


@pytest.mark.parametrize("drafter", ["dflash", "hybrid"])
def test_the_accepted_path_of_a_smaller_budget_is_the_larger_ones_cut(drafter: str) -> None:
    def rows(context: tuple[int, ...]) -> list[float]:
        return torch.randn(8, generator=torch.Generator().manual_seed(len(context))).tolist()

    for seed in range(40):
        paths = {}
        for budget in (3, 9, 30, 50):
            target = FakeTarget(rows, 8)
            _, trace = decode(
                target,
                FakeDrafter(favour(1, 2, 3)),
                prompt="abcdbacbdab",
                temperature=1,
                seed=seed,
                budget=budget,
                drafter=drafter,
                max_new_tokens=1,
            )
            assert trace.steps[0].accept is not None
            paths[budget] = trace.steps[0].accept.accept_index
        for small, large in ((3, 9), (9, 30), (30, 50)):
            whole = paths[large]
            beyond = next((i for i, node in enumerate(whole) if node > small), len(whole))
            assert paths[small] == whole[:beyond]


def test_lossy_thresholds_mark_the_run() -> None:
    target = FakeTarget(lambda context: [0.0] * 8, 8)
    _, trace = decode(target, FakeDrafter(favour(1, 2)), temperature=1, threshold_acc=0.5, max_new_tokens=4)
    assert trace.summary is not None and trace.summary.lossy
    _, trace = decode(target, FakeDrafter(favour(1, 2)), temperature=1, max_new_tokens=4)
    assert trace.summary is not None and not trace.summary.lossy


# ---- failures ----


def test_a_drafter_that_fails_ends_the_run_and_the_step_is_kept() -> None:
    target = FakeTarget(follow([1, 2, 3, 4, 5]), 8)
    tokens, trace = decode(target, FakeDrafter(favour(1), fail_at=1), budget=1, max_new_tokens=9)
    assert tokens == [1, 2]
    failed = trace.steps[-1]
    assert failed.error is not None
    assert (failed.error.code, failed.error.depth) == ("draft_fault", 2)
    assert "NaN" in failed.error.message
    assert failed.tree is None and failed.accept is None and failed.committed is None
    assert trace.summary is not None
    assert (trace.summary.finish_reason, trace.summary.steps) == ("error", 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_target_row_that_is_no_distribution_ends_the_run(temperature: float, value: float) -> None:
    def rows(context: tuple[int, ...]) -> list[float]:
        return [0.0] * 7 + [value if len(context) > 2 else 0.0]

    target = FakeTarget(rows, 8)
    _, trace = decode(target, None, method="autoregressive", temperature=temperature, max_new_tokens=9)
    failed = trace.steps[-1]
    assert failed.error is not None and failed.error.code == "target_fault"
    assert failed.committed is None and failed.tree is not None


def test_a_cancelled_run_has_a_trace_that_loads() -> None:
    decoder = TreeDecoder(
        FakeTarget(follow([1] * 50), 8), FakeDrafter(favour(2)), Settings(max_new_tokens=40)
    )
    for step in decoder.decode(PROMPT):
        if step.index == 2:
            break
    trace = load_trace(decoder.trace().to_json().encode())
    assert len(trace.steps) == 3
    assert trace.summary is not None and trace.summary.finish_reason == "cancelled"
    with pytest.raises(ValueError, match="has finished"):
        decoder.step(decoder._run)
