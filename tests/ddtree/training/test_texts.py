"""Texts files, and texts as documents."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree.training.texts import Text, documents, read_texts, write_texts


class Words:
    """A tokenizer of numbers, with a template that puts 1 before and 2 behind a prompt."""

    chat_template: Any = "yes"

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        return SimpleNamespace(input_ids=[0] * add_special_tokens + [int(part) for part in text.split()])

    def apply_chat_template(self, messages: Any, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize and add_generation_prompt
        return f"1 {messages[0]['content']} 2"


def text(prompt: str = "7 8", ids: tuple[int, ...] = (5, 6, 9)) -> Text:
    return Text(prompt=prompt, temperature=0.7, response_ids=list(ids))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    write_texts(file, [text(), text("ü")])
    write_texts(file, [text("third")])
    assert [one.prompt for one in read_texts(file)] == ["7 8", "ü", "third"]
    packed = tmp_path / "texts.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_texts(packed) == read_texts(file)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "temperature": 0}', "line 2: response_ids: Field required"),
        ('{"prompt": "a", "temperature": -1, "response_ids": []}', "line 2: temperature"),
        ("what", "line 2: the line: Invalid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(text().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_texts(file)


def test_a_document_is_what_decoding_would_have_seen() -> None:
    (document,) = documents([text()], Words(), 100, 0)
    assert document == ([1, 7, 8, 2, 5, 6, 9], 4, 0.7)
    plain = Words()
    plain.chat_template = None
    (document,) = documents([text()], plain, 100, 0)
    assert document == ([0, 7, 8, 5, 6, 9], 3, 0.7)


def test_documents_are_cut_and_those_without_an_answer_left_out() -> None:
    texts = [text(ids=(5, 6, 9, 4, 3)), text(ids=(5,)), text(prompt="1 2 3 4 5 6 7 8 9")]
    made = documents(texts, Words(), 8, 0)
    assert [document.token_ids for document in made] == [[1, 7, 8, 2, 5, 6, 9, 4]]


def test_the_order_is_drawn_from_the_seed() -> None:
    texts = [text(str(number)) for number in range(20)]
    orders = [[one.token_ids[1] for one in documents(texts, Words(), 100, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(20))
