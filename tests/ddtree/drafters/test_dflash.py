"""The drafter's forward against transformers' own DFlash arithmetic, and its place beside a target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_drafters import CONFIG, random_model
from tiny_models import BASE, VOCAB, twins

import ddtree
from ddtree.drafters.assistant import make_assistant
from ddtree.drafters.base import Context, DraftFault
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return twins("llama", BASE)[0]


@pytest.fixture(scope="module")
def drafter(target: Target) -> DFlashDrafter:
    return DFlashDrafter("tiny", CONFIG, random_model(CONFIG), target)


def context(target: Target, count: int, seed: int = 0) -> Context:
    ids = torch.randint(5, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    cache = target.new_cache(count + 8, CONFIG.target_layer_ids)
    list(target.prefill(cache, ids[:-1]))
    return Context(ids, cache.features)


def draft(drafter: DFlashDrafter, state: Any, given: Context, **changes: Any) -> Any:
    return drafter.draft(state, given, **{"block_size": 6, "candidates": 4, "temperature": 1.0, **changes})


@torch.inference_mode()
def test_the_block_is_transformers_arithmetic(target: Target, drafter: DFlashDrafter) -> None:
    """[root, masks] at the root's position and after, the context as keys and values of every layer; the
    context arrives in pieces here and at once there."""
    given = context(target, 12)
    assert given.features is not None
    reference = make_assistant(CONFIG, random_model(CONFIG).state_dict())
    embedding = target.model.get_input_embeddings()
    block = embedding(torch.tensor([given.token_ids[-1], *[CONFIG.mask_token_id] * 5]))
    hidden = reference(
        noise_embeds=block[None], context_hidden_states=given.features[None, :11]
    ).last_hidden_state
    expected = target.model.get_output_embeddings()(hidden[0, 1:])
    state = drafter.new_state(20)
    for end in (3, 4, 9, 12):
        logits = drafter.logits(state, Context(given.token_ids[:end], given.features), 6)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert state.length == 11


def test_the_block_starts_with_the_root_and_then_masks(drafter: DFlashDrafter, target: Target) -> None:
    given, seen = context(target, 9), []
    embed = target.model.get_input_embeddings()
    hook = embed.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0].tolist()))
    draft(drafter, drafter.new_state(20), given)
    hook.remove()
    assert seen == [[given.token_ids[-1], 4, 4, 4, 4, 4]]


def test_rows_are_the_depths_distributions(drafter: DFlashDrafter, target: Target) -> None:
    given = context(target, 9)
    made = draft(drafter, drafter.new_state(20), given, temperature=0.5)
    assert made.top_log_probs.shape == made.top_token_ids.shape == (5, 4)
    assert (made.source, made.temperature, made.child_rows) == ("dflash", 0.5, None)
    expected = torch.log_softmax(made.logits.double() / 0.5, -1).topk(4)
    assert torch.equal(made.top_token_ids, expected.indices)
    torch.testing.assert_close(made.top_log_probs.double(), expected.values, rtol=1e-5, atol=1e-5)


def test_a_shorter_block_has_fewer_rows(drafter: DFlashDrafter, target: Target) -> None:
    made = draft(drafter, drafter.new_state(20), context(target, 9), block_size=3)
    assert made.top_log_probs.shape == (2, 4)


def test_one_token_has_no_context(drafter: DFlashDrafter, target: Target) -> None:
    made = draft(drafter, drafter.new_state(20), context(target, 1))
    assert made.top_log_probs.shape == (5, 4)


def test_switched_in_mid_run_it_catches_up(drafter: DFlashDrafter, target: Target) -> None:
    given = context(target, 15)
    followed, late = drafter.new_state(20), drafter.new_state(20)
    for end in range(2, 16):
        step = draft(drafter, followed, Context(given.token_ids[:end], given.features))
    caught_up = draft(drafter, late, given)
    torch.testing.assert_close(caught_up.logits, step.logits, rtol=1e-4, atol=1e-4)


def test_a_state_ahead_of_the_sequence_goes_back(drafter: DFlashDrafter, target: Target) -> None:
    given = context(target, 15)
    state, fresh = drafter.new_state(20), drafter.new_state(20)
    draft(drafter, state, given)
    shorter = Context(given.token_ids[:8], given.features)
    torch.testing.assert_close(
        draft(drafter, state, shorter).logits, draft(drafter, fresh, shorter).logits, rtol=1e-4, atol=1e-4
    )


def test_without_features_it_says_so(drafter: DFlashDrafter) -> None:
    with pytest.raises(ValueError, match="tapped hidden states"):
        draft(drafter, drafter.new_state(20), Context([5], None))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_unusable_logits_name_the_depth(
    drafter: DFlashDrafter, target: Target, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    right = drafter._head

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden).clone()
        logits[2, 100] = bad
        return logits

    monkeypatch.setattr(drafter, "_head", head)
    with pytest.raises(DraftFault, match="depth 3") as caught:
        draft(drafter, drafter.new_state(20), context(target, 9))
    assert caught.value.depth == 3


def test_a_row_without_mass_names_the_depth(
    drafter: DFlashDrafter, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = drafter._head

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden).clone()
        logits[0] = -torch.inf
        return logits

    monkeypatch.setattr(drafter, "_head", head)
    with pytest.raises(DraftFault) as caught:
        draft(drafter, drafter.new_state(20), context(target, 9))
    assert caught.value.depth == 1


def test_a_vocabulary_of_its_own_is_translated(target: Target) -> None:
    """Eight draft tokens stand for other ids of the target: rows, ids and whole logits are the target's."""
    ids = torch.tensor([3, 5, 8, 13, 21, 34, 55, 210])
    head = torch.nn.Linear(64, 8, bias=False)
    own = DFlashDrafter("own", CONFIG, random_model(CONFIG), target, head, ids)
    given = context(target, 9)
    raw = own.logits(own.new_state(20), given, 6)
    made = draft(own, own.new_state(20), given, candidates=50)
    assert raw.shape == (5, 8)
    assert made.logits.shape == (5, VOCAB)
    assert made.top_token_ids.shape == (5, 8)
    assert sorted(made.top_token_ids[0].tolist()) == ids.tolist()
    expected = torch.log_softmax(raw, -1)
    for row in range(5):
        for log_prob, token in zip(made.top_log_probs[row], made.top_token_ids[row], strict=True):
            torch.testing.assert_close(log_prob, expected[row, (ids == token).nonzero().item()])
            assert made.logits[row, token] == raw[row, (ids == token).nonzero().item()]
    assert made.logits[0, 4] == -torch.inf


@pytest.mark.model
def test_the_shipped_drafter_drafts_what_the_default_model_says() -> None:
    """How often the likeliest first token is the target's greedy one, along three answers of 40 tokens: .38
    here."""
    target = ddtree.load_target()
    drafter = ddtree.load_drafter(target=target)
    one = torch.ones(1, 1, dtype=torch.bool)
    hits = total = 0
    for prompt in (
        "Write a short story about a dragon.",
        "What is gravity?",
        "List three healthy breakfasts.",
    ):
        message = [{"role": "user", "content": prompt}]
        text = target.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = target.tokenizer(text, add_special_tokens=False).input_ids
        cache = target.new_cache(len(ids) + 41, drafter.taps)
        state = drafter.new_state(cache.capacity)
        list(target.prefill(cache, ids[:-1]))
        for _ in range(40):
            guess = draft(drafter, state, Context(ids, cache.features), block_size=8).top_token_ids[0, 0]
            logits = target.verify(cache, torch.tensor(ids[-1:]), torch.tensor([len(ids) - 1]), one)
            target.commit(cache, [0])
            ids.append(int(logits[0].argmax()))
            hits += int(guess) == ids[-1]
            total += 1
    assert hits / total > 0.3
