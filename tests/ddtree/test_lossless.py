"""The check of a step: a right sampler passes, broken ones are caught, rounding is called so.

Draws use fixed seeds, so a run of these tests always gives the same result; with other seeds a right sampler
would fall below the limit of P_VALUE in one of 1,000 cases (each of the five fits below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fakes import word_tokenizer
from tiny_models import BASE, ours
from transformers import AutoConfig, AutoModelForCausalLM

from ddtree import TreeDecoder
from ddtree.goodness import Fit
from ddtree.loading import make_target
from ddtree.lossless import (
    Counted,
    Difference,
    NotCheckable,
    Progress,
    Verdict,
    check_step,
    distribution,
    draw,
)
from ddtree.sampling import verify_tree
from ddtree.settings import Settings
from ddtree.trace import Step

P_VALUE = 1e-3
DRAWS = 6000
LETTERS = 26

PARENTS, TOKENS = [-1, 0, 0, 1, 1], [3, 7, 5, 9]
NEXT_TOKEN, NEXT_SIBLING = [1, 3, -1, -1, -1], [-1, 2, -1, 4, -1]


def rows() -> torch.Tensor:
    logits = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    logits[0, 3] += 2.5
    return logits


def walked(logits: torch.Tensor, uniform: torch.Tensor, final: float) -> Any:
    return verify_tree(
        logits,
        torch.tensor([0, *TOKENS]),
        torch.tensor(NEXT_TOKEN),
        torch.tensor(NEXT_SIBLING),
        temperature=0.8,
        top_k=12,
        top_p=0.95,
        coins=uniform,
        final_coin=final,
        threshold_single=1,
        threshold_acc=1,
    )


def right(uniform: torch.Tensor, final: float) -> Sequence[int]:
    verdict = walked(rows(), uniform, final)
    return [*(TOKENS[node - 1] for node in verdict.accept_index[1:]), verdict.bonus_token_id]


def one_coin_for_two_decisions(uniform: torch.Tensor, final: float) -> Sequence[int]:
    """The bonus is drawn with the coin that already rejected the children."""
    path = walked(rows(), uniform, final).accept_index
    verdict = walked(rows(), uniform, float(uniform[path[-1]]))
    return [*(TOKENS[node - 1] for node in verdict.accept_index[1:]), verdict.bonus_token_id]


def by_the_drafter(uniform: torch.Tensor, final: float) -> Sequence[int]:
    """The first child is accepted by min(1, p / q) as if it had been drawn from the drafter with q = 0.9."""
    p = float(distribution(rows()[0], 0.8, 12, 0.95)[3])
    if float(uniform[0]) < min(1.0, p / 0.9):
        return [3, *right(uniform, final)[1:]] if right(uniform, final)[0] == 3 else [3]
    return right(uniform, final)


def fits(walk: Any, seed: int = 11) -> list[Fit]:
    counted = Counted(TOKENS, 16, after=1)
    for progress in draw(walk, counted, 5, DRAWS, seed):
        assert progress.total == DRAWS
    return [found.fit for found in counted.fits(lambda node: distribution(rows()[node], 0.8, 12, 0.95))]


def test_the_sampler_passes_on_both_tokens() -> None:
    first, second = fits(right)
    assert first.draws == DRAWS
    assert 0 < second.draws < DRAWS
    assert second.draws == sum(c.observed for c in first.categories if c.token_id == 3)
    for found in (first, second):
        assert found.p_value is not None and found.p_value > P_VALUE
        assert found.total_variation < 2 * found.expected_variation
        assert found.impossible == 0


@pytest.mark.parametrize("broken", [one_coin_for_two_decisions, by_the_drafter])
def test_a_broken_sampler_is_caught(broken: Any) -> None:
    first, _ = fits(broken)
    assert first.p_value is not None and first.p_value < 1e-12
    assert first.total_variation > 3 * first.expected_variation


def test_the_reference_distribution_is_transformers() -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    for temperature, top_k, top_p in ((0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.6), (0.9, 9, 0.8)):
        scores = rows().double()
        warpers: list[Any] = [TemperatureLogitsWarper(temperature)]
        warpers += [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        for warper in warpers:
            scores = warper(None, scores)
        for row, expected in zip(rows(), torch.softmax(scores, -1), strict=True):
            assert torch.allclose(distribution(row, temperature, top_k, top_p), expected, atol=1e-12)


@pytest.fixture(scope="module")
def target() -> Any:
    """A random llama over 26 letters: its own repetitions make the n-gram drafter's trees."""
    options = {**BASE, "vocab_size": LETTERS}
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **options)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reference.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * 0.3 if weight.ndim > 1 else 1 + noise * 0.1)
    return make_target(ours("llama", options, reference), word_tokenizer(LETTERS), "llama")


def decoded(target: Any, **settings: Any) -> tuple[list[int], list[Step]]:
    """(the prompt's tokens, the steps) of a run."""
    decoder = TreeDecoder(target, None, Settings(max_new_tokens=24, seed=4, drafter="ngram", **settings))
    steps = list(decoder.decode("abcabcab"))
    return decoder.trace().prompt.token_ids, steps


def check(
    target: Any, prompt: list[int], steps: list[Step], index: int, draws: int = 2000
) -> tuple[list[Progress], Verdict]:
    before = [t for step in steps[:index] if step.committed for t in step.committed.token_ids]
    after = [t for step in steps[index:] if step.committed for t in step.committed.token_ids]
    *told, verdict = check_step(target, [*prompt, *before], steps[index], after, draws, seed=7)
    assert isinstance(verdict, Verdict)
    return [one for one in told if isinstance(one, Progress)], verdict


def with_tree(steps: list[Step]) -> int:
    return next(s.index for s in steps if s.tree is not None and len(s.tree.token_ids) > 1)


def test_a_sampled_step_of_a_run(target: Any) -> None:
    prompt, steps = decoded(target, temperature=1, top_k=40)
    told, verdict = check(target, prompt, steps, with_tree(steps))
    assert {one.phase for one in told} == {"context", "rows", "draws"}
    assert told[-1].done == told[-1].total == 2000
    assert verdict.sampler[0].after is None
    assert verdict.sampler[0].fit.p_value is not None and verdict.sampler[0].fit.p_value > P_VALUE
    assert [row.node for row in verdict.rows] == [0, verdict.rows[1].node]
    assert all(row.largest < 1e-5 and row.total_variation < 1e-4 for row in verdict.rows)  # float32
    assert verdict.greedy is None


def test_a_greedy_run_is_plain_decodings_to_its_end(target: Any) -> None:
    prompt, steps = decoded(target)
    index = with_tree(steps)
    _, verdict = check(target, prompt, steps, index)
    committed = sum(len(s.committed.token_ids) for s in steps[index:] if s.committed)
    assert verdict.greedy is not None
    assert (verdict.greedy.compared, verdict.greedy.difference) == (committed, None)
    assert verdict.sampler == []


def test_a_greedy_token_that_is_another_is_named(target: Any) -> None:
    prompt, steps = decoded(target)
    index = with_tree(steps)
    wrong = steps[index]
    assert wrong.committed is not None
    ids = list(wrong.committed.token_ids)
    right_id, ids[-1] = ids[-1], (ids[-1] + 1) % LETTERS
    tampered = [
        *steps[:index],
        wrong.model_copy(update={"committed": wrong.committed.model_copy(update={"token_ids": ids})}),
    ]
    _, verdict = check(target, prompt, tampered, index)
    assert verdict.greedy is not None
    difference = verdict.greedy.difference
    assert isinstance(difference, Difference)
    assert (difference.place, difference.committed, difference.plain) == (len(ids) - 1, ids[-1], right_id)
    assert difference.margin > 0


def test_a_step_without_drafts_is_checked_by_its_root_alone(target: Any) -> None:
    prompt, steps = decoded(target, temperature=1, method="autoregressive")
    _, verdict = check(target, prompt, steps, 2)
    assert [row.node for row in verdict.rows] == [0]
    (only,) = verdict.sampler
    assert only.fit.draws == 2000
    assert only.fit.p_value is not None and only.fit.p_value > P_VALUE


def test_a_lossy_or_failed_step_is_refused_with_the_reason(target: Any) -> None:
    prompt, steps = decoded(target, temperature=1, threshold_acc=0.5)
    with pytest.raises(
        NotCheckable, match=r"thresholds below 1 \(single 1, accumulated 0.5\).*lossy by design"
    ):
        check(target, prompt, steps, 0)
    with pytest.raises(NotCheckable, match="failed"):
        check(target, prompt, [steps[0].model_copy(update={"settings": Settings(), "committed": None})], 0)
