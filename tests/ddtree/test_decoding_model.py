"""The real default model: exact in float32 when greedy, its own distribution when sampled."""

from __future__ import annotations

import pytest
import torch
from common import OWN_PROMPTS, read_prompts
from exactness import Comparison, lanes
from scipy import stats

import ddtree
from ddtree.drafters.base import Context
from ddtree.settings import Settings

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison()


@pytest.mark.parametrize("prompt", read_prompts(OWN_PROMPTS, every=7))
def test_greedy_float32_text_equals_the_untouched_models(comparison: Comparison, prompt: str) -> None:
    assert comparison.prompt(prompt, lanes((7, 31), new_tokens=32)) == {}


@pytest.mark.parametrize("drafter", ["ngram", "hybrid"])
def test_so_does_the_other_drafters(comparison: Comparison, drafter: str) -> None:
    prompt = "Repeat this line four times: the quick brown fox jumps over the lazy dog."
    assert comparison.prompt(prompt, lanes((15,), new_tokens=48), drafter=drafter) == {}


def test_in_bfloat16_a_trees_text_is_plain_decodings() -> None:
    """A node's row is, to the bit, the row of plain decoding: near ties cannot fall apart by rounding."""
    target = ddtree.load_target(dtype="bfloat16")
    assert target.native is not None
    drafter = ddtree.load_drafter(target=target)
    texts = {}
    for method, budget in (("autoregressive", 0), ("chain", 7), ("ddtree", 7), ("ddtree", 40)):
        settings = Settings(method=method, budget=budget, max_new_tokens=64)
        decoder = ddtree.TreeDecoder(target, drafter, settings)
        steps = list(decoder.decode("List three reasons why a lighthouse keeper might like fog."))
        texts[method, budget] = [token for step in steps for token in step.committed.token_ids]
    plain = texts["autoregressive", 0]
    assert len(plain) == 64
    assert all(text == plain for text in texts.values())


def test_first_tokens_are_samples_of_the_models_distribution(comparison: Comparison) -> None:
    """Chi-square of the first token of 300 steps at temperature 1 from the same state, each with the coins of
    its own step index, against the untouched model's row; tokens pooled to an expected count of at least 5.
    The seed is fixed; over all seeds a true sampler fails once in 10,000."""
    prompt, draws = "The best thing about rain is", 300
    settings = Settings(temperature=1, budget=7, max_new_tokens=1, chat=False, seed=11)
    decoder = ddtree.TreeDecoder(comparison.target, comparison.drafter, settings)
    run = decoder.start(prompt)
    list(decoder.prefill(run))
    begin = run.cache.length
    drawn = []
    for index in range(draws):
        run.steps, run.finish_reason, run.cache.length = index, None, begin
        del run.token_ids[len(run.prompt.token_ids) :]
        step = decoder.step(run)
        assert step.committed is not None
        drawn.append(step.committed.token_ids[0])
    with torch.inference_mode():
        ids = torch.tensor([run.prompt.token_ids])
        row = torch.softmax(comparison.reference(ids).logits[0, -1].double(), dim=0)
    expected = row * draws
    frequent = (expected >= 5).nonzero().flatten().tolist()
    counts = [drawn.count(token) for token in frequent]
    counts.append(draws - sum(counts))
    wanted = [float(expected[token]) for token in frequent]
    wanted.append(draws - sum(wanted))
    assert len(counts) > 5
    assert stats.chisquare(counts, wanted).pvalue > 1e-4


def test_a_shorter_prompt_in_between_changes_nothing(comparison: Comparison) -> None:
    decoder = ddtree.TreeDecoder(
        comparison.target, comparison.drafter, Settings(temperature=1, seed=5, max_new_tokens=12)
    )
    texts = []
    for prompt in (
        "Tell me about the harbour of a small island town.",
        "Hi",
        "Tell me about the harbour of a small island town.",
    ):
        texts.append([step.committed for step in decoder.decode(prompt)])
    assert texts[0] == texts[2] != texts[1]


def test_two_runs_side_by_side_equal_the_same_runs_alone(comparison: Comparison) -> None:
    def decoder() -> ddtree.TreeDecoder:
        return ddtree.TreeDecoder(
            comparison.target, comparison.drafter, Settings(temperature=1, seed=5, max_new_tokens=12)
        )

    prompts = ("Name a river.", "Count to five.")
    alone = [[step.committed for step in decoder().decode(prompt)] for prompt in prompts]
    together: list[list[object]] = [[], []]
    open_runs = [decoder().decode(prompt) for prompt in prompts]
    while any(len(done) < len(solo) for done, solo in zip(together, alone, strict=True)):
        for done, steps in zip(together, open_runs, strict=True):
            step = next(steps, None)
            if step is not None:
                done.append(step.committed)
    assert together == alone


def test_a_drafter_switched_in_mid_run_drafts_as_if_it_had_been_there(comparison: Comparison) -> None:
    """One state that is asked at every step, one that catches up after five: the same rows."""
    settings = Settings(method="autoregressive", max_new_tokens=8)
    decoder = ddtree.TreeDecoder(comparison.target, comparison.drafter, settings)
    run = decoder.start("Write two sentences about bread.")
    list(decoder.prefill(run))
    drafter = comparison.drafter
    early, late = drafter.new_state(run.cache.capacity), drafter.new_state(run.cache.capacity)
    for _ in range(5):
        decoder.step(run)
        drafts = drafter.draft(
            early, Context(run.token_ids, run.cache.features), block_size=8, candidates=16, temperature=1.0
        )
    again = drafter.draft(
        late, Context(run.token_ids, run.cache.features), block_size=8, candidates=16, temperature=1.0
    )
    assert torch.equal(drafts.top_token_ids, again.top_token_ids)
    assert torch.allclose(drafts.top_log_probs, again.top_log_probs, atol=1e-4)
