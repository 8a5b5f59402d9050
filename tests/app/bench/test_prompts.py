"""Prompts: read, sampled, cut."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from app.bench.prompts import OWN_PROMPTS, BenchPrompt, fit, of_categories, read_prompts, sample


def written(folder: Path, *lines: str) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_prompt_or_first_turn_with_id_and_category_or_without(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        json.dumps({"id": 81, "category": "writing", "prompt": "Compose."}),
        "",
        json.dumps({"turns": ["First.", "Second."]}),
    )
    assert read_prompts(file) == [BenchPrompt("81", "writing", "Compose."), BenchPrompt("3", "all", "First.")]


def test_our_own_prompts_are_twelve_of_as_many_categories() -> None:
    prompts = read_prompts(OWN_PROMPTS)
    assert (len(prompts), len({prompt.category for prompt in prompts})) == (12, 12)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "it has no lines"),
        (('{"prompt": "a"}', "{"), "line 2: not JSON at column 2"),
        (("[1]",), "line 1: it must be an object"),
        (('{"text": "a"}',), "line 1: it needs a text in `prompt`, or a list of texts in `turns`"),
        (('{"prompt": " "}',), "line 1: it needs a text"),
        (('{"id": 1, "prompt": "a"}', '{"id": "1", "prompt": "b"}'), "the id '1' stands there twice"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_prompts(written(tmp_path, *lines))
    assert message in str(caught.value)
    assert str(tmp_path / "prompts.jsonl") in str(caught.value)


def many(**counts: int) -> list[BenchPrompt]:
    return [BenchPrompt(f"{name}{i}", name, "text") for name, count in counts.items() for i in range(count)]


def test_categories_are_picked_and_one_that_is_not_there_is_refused() -> None:
    prompts = many(a=2, b=1, c=2)
    assert [prompt.id for prompt in of_categories(prompts, ["c", "a"])] == ["a0", "a1", "c0", "c1"]
    with pytest.raises(ValueError, match="no prompt has it; there are a, b, c"):
        of_categories(prompts, ["d"])


def test_a_sample_is_spread_over_categories_by_their_size_and_over_each() -> None:
    """Five large and eight small categories, as Spec-Bench halves: 40 of 240."""
    sizes = {f"large{i}": 40 for i in range(5)} | {f"small{i}": 5 for i in range(8)}
    taken = sample(many(**sizes), 40)
    counts = Counter(prompt.category for prompt in taken)
    assert sum(counts.values()) == 40
    assert all(counts[name] in (6, 7) for name in sizes if name.startswith("large"))
    assert all(counts[name] == 1 for name in sizes if name.startswith("small"))
    last = [int(prompt.id.removeprefix("large0")) for prompt in taken if prompt.category == "large0"]
    assert last[0] == 0 and last[-1] >= 30
    assert taken == sample(many(**sizes), 40)


@pytest.mark.parametrize("count", range(1, 25))
def test_a_sample_has_its_size_and_the_files_order(count: int) -> None:
    prompts = many(a=12, b=1, c=4, d=1, e=2)
    taken = sample(prompts, count)
    assert len(taken) == min(count, 20)
    assert taken == [prompt for prompt in prompts if prompt in taken]
    if count >= 5:
        assert {prompt.category for prompt in taken} == set("abcde")


def words(text: str) -> int:
    """Tokens of a made-up template: three of its own, and one for every five characters begun."""
    return 3 + -(-len(text) // 5)


def test_a_long_prompt_is_cut_to_the_limit_and_a_short_one_is_not() -> None:
    long = fit(BenchPrompt("1", "a", "x" * 400), words, 32)
    assert (long.tokens, long.cut, len(long.text)) == (32, True, 145)
    short = fit(BenchPrompt("2", "a", "x" * 145), words, 32)
    assert (short.tokens, short.cut, len(short.text)) == (32, False, 145)


def test_characters_of_several_tokens_end_below_the_limit() -> None:
    cut = fit(BenchPrompt("1", "a", "🙂" * 20), lambda text: 2 + 3 * len(text), 31)
    assert (cut.text, cut.tokens) == ("🙂" * 9, 29)


def test_a_longer_prefix_with_fewer_tokens_is_found() -> None:
    """Whole words of eight letters are one token, every letter of a broken one another."""

    def count(text: str) -> int:
        return len(text) // 8 + len(text) % 8

    assert len(fit(BenchPrompt("1", "a", "x" * 800), count, 50).text) == 400


def test_a_template_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="--prompt-limit 3: the template alone has 3 tokens; use more"):
        fit(BenchPrompt("1", "a", "xx"), words, 3)


@pytest.mark.model
def test_the_default_models_template_keeps_its_closing() -> None:
    from ddtree.models import load_tokenizer

    tokenizer = load_tokenizer(None)

    def ids(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        whole = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(whole, add_special_tokens=False).input_ids)

    text = "The town's old mill stood empty for forty years; naïve visitors 🙂 came anyway. " * 60
    cut = fit(BenchPrompt("1", "a", text), lambda part: len(ids(part)), 512)
    assert len(ids(cut.text)) == cut.tokens == 512
    assert text.startswith(cut.text)
    assert ids(cut.text)[-5:] == ids("short")[-5:]
    assert ids(cut.text)[:10] == ids("short")[:10]
