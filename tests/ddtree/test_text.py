"""Tokens as text, for byte-level and byte-fallback vocabularies."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ddtree.text import RunningText, TokenText, show_bytes

SPACE = "\u0120"  # a byte-level vocabulary writes a leading space so


@pytest.fixture(scope="module")
def byte_level() -> TokenText:
    # F0 9F 98 80 is a grinning face; in the byte-level alphabet: \u00f0 \u0141 \u013a \u0122
    vocab = {
        "a": 0,
        SPACE + "the": 1,
        "\u00f0\u0141": 2,
        "\u013a\u0122": 3,
        "\u0122": 4,
        "\u010a": 5,
        "<b>": 6,
    }
    backend = Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    return TokenText(tokenizer)


@pytest.fixture(scope="module")
def byte_fallback() -> TokenText:
    vocab = {"<unk>": 0, "\u2581the": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x98>": 4, "<0x80>": 5, "y": 6}
    backend = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TokenText(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_a_token_by_itself_shows_its_bytes_where_they_are_no_character(byte_level: TokenText) -> None:
    shown = [byte_level.shown(i) for i in range(8)]
    assert shown == ["a", " the", "<F0><9F>", "<98><80>", "<80>", "\n", "<b>", "<|im_end|>"]


def test_a_character_split_over_tokens_appears_once_and_whole(byte_level: TokenText) -> None:
    assert RunningText(byte_level).push([0, 2, 3, 1]) == ["a", "", "\U0001f600", " the"]


def test_a_lone_continuation_byte_never_raises(byte_level: TokenText) -> None:
    text = RunningText(byte_level)
    assert text.push([4, 0]) == ["\ufffd", "a"]
    assert text.push([2]) == [""]
    assert text.finish() == "\ufffd"


def test_the_halves_may_come_in_separate_pushes(byte_level: TokenText) -> None:
    text = RunningText(byte_level)
    assert text.push([2]) + text.push([3]) == ["", "\U0001f600"]
    assert text.finish() == ""


def test_an_id_without_a_token_is_shown_as_its_number(byte_level: TokenText) -> None:
    assert byte_level.shown(999) == "<999>"


def test_byte_fallback_vocabularies(byte_fallback: TokenText) -> None:
    assert [byte_fallback.shown(i) for i in (1, 2, 6)] == [" the", "<F0>", "y"]
    assert RunningText(byte_fallback).push([1, 2, 3, 4, 5, 6]) == [" the", "", "", "", "\U0001f600", "y"]


def test_show_bytes_keeps_whole_characters() -> None:
    assert show_bytes(b"caf\xc3\xa9\xc3") == "caf\u00e9<C3>"
    assert show_bytes(b"") == ""


@pytest.mark.model
def test_running_text_equals_the_tokenizers_own_decoding() -> None:
    from ddtree.models import load_tokenizer

    tokenizer = load_tokenizer()
    tokens = TokenText(tokenizer)
    text = "na\u00efve caf\u00e9 \U0001f600\U0001f680 \u4f60\u597d\n\ttabs <b>&lt; <|im_end|> \u202eright"
    ids = tokenizer(text).input_ids
    running = RunningText(tokens)
    assert "".join(running.push(ids)) + running.finish() == tokenizer.decode(ids)
