"""Tree passes of many families against plain forwards of an untouched twin, path by path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import BASE, FAMILIES, VOCAB, WINDOW, twins

from ddtree.target import Target

PARENTS = [-1, 0, 0, 1, 1, 2, 5, 0]
DEPTHS = [0, 1, 1, 2, 2, 2, 3, 1]
PROMPT = 30  # tokens before the root; the families with a window have one of 16


def paths() -> list[list[int]]:
    found: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def visibility() -> torch.Tensor:
    seen = torch.zeros(len(PARENTS), len(PARENTS), dtype=torch.bool)
    for node, path in enumerate(paths()):
        seen[node, path] = True
    return seen


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def plain(reference: Any, ids: torch.Tensor) -> Any:
    return reference(input_ids=ids[None], output_hidden_states=True, use_cache=False)


def prefill(target: Target, cache: Any, ids: torch.Tensor, chunk: int = 256) -> None:
    assert list(target.prefill(cache, ids.tolist(), chunk))[-1] == len(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_scores_as_its_path_alone(family: str) -> None:
    target, reference = twins(*FAMILIES[family])
    ids = tokens(PROMPT + len(PARENTS))
    cache = target.new_cache(PROMPT + len(PARENTS), taps=(0, 2, target.num_layers - 1))
    prefill(target, cache, ids[:PROMPT], chunk=7)
    positions = PROMPT + torch.tensor(DEPTHS)
    logits = target.verify(cache, ids[PROMPT:], positions, visibility())
    assert logits.shape == (len(PARENTS), VOCAB)
    assert cache.features is not None
    for node, path in enumerate(paths()):
        expected = plain(reference, torch.cat((ids[:PROMPT], ids[PROMPT:][path])))
        scale = expected.logits.abs().max()
        assert (logits[node] - expected.logits[0, -1]).abs().max() <= 1e-4 * max(1, scale)
        features = torch.cat([expected.hidden_states[i][0, -1] for i in (1, 3, -1)])
        torch.testing.assert_close(
            cache.features[PROMPT + node], features, rtol=1e-4, atol=1e-4 * features.abs().max()
        )


@pytest.mark.parametrize(
    "family", ["llama", "mistral, window left", "gemma2: soft caps, alternating windows"]
)
def test_after_a_commit_the_next_pass_continues_the_path(family: str) -> None:
    target, reference = twins(*FAMILIES[family])
    ids = tokens(PROMPT + len(PARENTS))
    cache = target.new_cache(PROMPT + 2 * len(PARENTS))
    prefill(target, cache, ids[:PROMPT])
    target.verify(cache, ids[PROMPT:], PROMPT + torch.tensor(DEPTHS), visibility())
    target.commit(cache, [0, 2, 5, 6])
    assert cache.length == PROMPT + 4
    committed = torch.cat((ids[:PROMPT], ids[PROMPT:][[0, 2, 5, 6]]))
    after = tokens(len(PARENTS), seed=2)
    logits = target.verify(cache, after, PROMPT + 4 + torch.tensor(DEPTHS), visibility())
    for node, path in enumerate(paths()):
        expected = plain(reference, torch.cat((committed, after[path]))).logits[0, -1]
        assert (logits[node] - expected).abs().max() <= 1e-4 * max(1, expected.abs().max())


def test_the_last_tap_is_the_state_after_the_final_norm() -> None:
    target, reference = twins("llama", BASE)
    ids = tokens(9)
    cache = target.new_cache(9, taps=(3,))
    prefill(target, cache, ids, chunk=4)
    with torch.inference_mode():
        normed = reference.model(input_ids=ids[None]).last_hidden_state[0]
    assert cache.features is not None
    torch.testing.assert_close(cache.features, normed, rtol=1e-5, atol=1e-5)


def test_a_padding_row_changes_no_other() -> None:
    target, _ = twins("llama", BASE)
    ids = tokens(PROMPT + 3)
    cache = target.new_cache(PROMPT + 4)
    prefill(target, cache, ids[:PROMPT])
    chain = torch.ones(3, 3, dtype=torch.bool).tril()
    positions = torch.arange(PROMPT, PROMPT + 3)
    bare = target.verify(cache, ids[PROMPT:], positions, chain)
    padded_sight = torch.zeros(4, 4, dtype=torch.bool)
    padded_sight[:3, :3] = chain
    padded_sight[3, [0, 3]] = True  # the root and itself
    padded = target.verify(
        cache, torch.cat((ids[PROMPT:], ids[:1])), torch.cat((positions, positions[:1])), padded_sight
    )
    torch.testing.assert_close(padded[:3], bare, rtol=1e-5, atol=1e-5)


def test_a_pass_without_commit_leaves_nothing() -> None:
    target, _ = twins("llama", BASE)
    ids = tokens(PROMPT + 2)
    cache = target.new_cache(PROMPT + 8)
    prefill(target, cache, ids[:PROMPT])
    one = torch.ones(1, 1, dtype=torch.bool)
    first = target.verify(cache, ids[PROMPT : PROMPT + 1], torch.tensor([PROMPT]), one)
    target.verify(cache, ids[PROMPT + 1 :], torch.tensor([PROMPT]), one)
    assert cache.length == PROMPT
    again = target.verify(cache, ids[PROMPT : PROMPT + 1], torch.tensor([PROMPT]), one)
    assert torch.equal(first, again)


def test_a_second_shorter_prompt_then_the_first_again() -> None:
    """Caches share nothing: the third pass equals the first to the last bit."""
    target, _ = twins("llama", BASE)
    long, short = tokens(40), tokens(5, seed=3)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        cache = target.new_cache(len(ids))
        prefill(target, cache, ids[:-1], chunk=16)
        at = torch.tensor([len(ids) - 1])
        return target.verify(cache, ids[-1:], at, torch.ones(1, 1, dtype=torch.bool))

    first = logits(long)
    logits(short)
    assert torch.equal(logits(long), first)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral, window left"])
def test_greedy_decoding_equals_generate(family: str) -> None:
    """Chains of four guesses of which two are right, against the untouched twin's own generate."""
    target, reference = twins(*FAMILIES[family])
    prompt, count = tokens(12, seed=5), 40
    expected = reference.generate(
        prompt[None], do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0
    )[0, 12:].tolist()
    cache = target.new_cache(12 + count + 8)
    prefill(target, cache, prompt[:-1])
    sequence = prompt.tolist()
    while len(sequence) < 12 + count:
        done = len(sequence) - 12
        guesses = [*expected[done : done + 2], 7, 7]
        rows = torch.tensor([sequence[-1], *guesses])
        positions = torch.arange(cache.length, cache.length + len(rows))
        sight = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
        greedy = target.verify(cache, rows, positions, sight).argmax(-1).tolist()
        accepted = 0
        while accepted < len(guesses) and greedy[accepted] == guesses[accepted]:
            accepted += 1
        target.commit(cache, range(accepted + 1))
        sequence += [*guesses[:accepted], greedy[accepted]]
    assert sequence[12 : 12 + count] == expected


def test_one_token_prompt_and_empty_prefill() -> None:
    target, reference = twins("llama", BASE)
    cache = target.new_cache(4)
    assert list(target.prefill(cache, [])) == []
    logits = target.verify(cache, torch.tensor([5]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(
        logits[0], plain(reference, torch.tensor([5])).logits[0, -1], rtol=1e-4, atol=1e-4
    )


def test_prefill_can_be_stopped_and_continued() -> None:
    target, _ = twins("llama", BASE)
    cache = target.new_cache(20)
    passes = target.prefill(cache, list(range(3, 13)), chunk=4)
    assert next(passes) == 4
    passes.close()
    assert cache.length == 4
    assert list(target.prefill(cache, list(range(7, 13)), chunk=4)) == [4, 6]
    assert cache.length == 10


def test_a_pass_that_does_not_fit_is_an_error() -> None:
    target, _ = twins("llama", BASE)
    cache = target.new_cache(3)
    with pytest.raises(ValueError, match="4 rows after 0 tokens exceeds the cache of 3"):
        target.verify(cache, tokens(4), torch.arange(4), torch.ones(4, 4, dtype=torch.bool).tril())
    with pytest.raises(ValueError, match=r"layers \[4\] cannot be tapped: llama has layers 0 to 3"):
        target.new_cache(3, taps=(0, 4))


def test_what_a_target_says_of_itself() -> None:
    target, _ = twins("mistral", {**BASE, "sliding_window": WINDOW})
    assert (target.name, target.vocab_size, target.num_layers, target.hidden_size) == (
        "mistral",
        VOCAB,
        4,
        64,
    )
    assert (target.max_context, target.dtype, target.device.type) == (256, torch.float32, "cpu")
    assert target.stop_token_ids == (2,)
    assert target.notes == []


def test_the_model_can_still_be_called_by_a_user() -> None:
    """With our attention in place a plain forward, a padded batch and generate work as transformers' do."""
    target, reference = twins("llama", BASE)
    ids = torch.stack((tokens(9), tokens(9, seed=4)))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :3] = 0
    with torch.inference_mode():
        ours = target.model(input_ids=ids, attention_mask=mask).logits
        theirs = reference(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[0, 3:], theirs[0, 3:], rtol=1e-4, atol=1e-4)
    options = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(target.model.generate(ids, **options), reference.generate(ids, **options))
