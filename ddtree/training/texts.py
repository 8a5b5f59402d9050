"""Texts of the target's own making: one JSON object a line, perhaps gzipped.

A text is a prompt and the token ids of the target's answer. As a document it is the prompt through the chat
template, as decoding opens an answer, and the answer's ids behind it.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Text(BaseModel):
    """One line of a texts file."""

    model_config = ConfigDict(extra="forbid")

    prompt: str
    temperature: Annotated[float, Field(ge=0)]
    response_ids: list[Annotated[int, Field(ge=0)]]
    finished: bool = False
    """Whether the answer ended by itself (with a stop token), not at a length limit."""


class Document(NamedTuple):
    """A text as the token sequence that decoding would have seen."""

    token_ids: list[int]
    start: int  # tokens of the prompt, the assistant's opening included; the first root is the last of them
    temperature: float


def read_texts(file: Path) -> list[Text]:
    """The texts of a JSON Lines file (gzipped where its name ends in .gz). Raises ValueError that names the
    file and the line."""
    texts = []
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                texts.append(Text.model_validate_json(line))
            except ValidationError as error:
                what = error.errors()[0]
                where = ".".join(str(part) for part in what["loc"])
                raise ValueError(
                    f"{file}, line {number}: {where or 'the line'}: {what['msg']}; a line is an object with "
                    "prompt, temperature and response_ids"
                ) from None
    return texts


def write_texts(file: Path, texts: Iterable[Text]) -> None:
    """Appends `texts` to a JSON Lines file."""
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(text.model_dump_json() + "\n" for text in texts)


def opening(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of the prompt as decoding sees it: through the chat template where there is one."""
    if tokenizer.chat_template is None:
        return [int(i) for i in tokenizer(prompt).input_ids]
    message = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return [int(i) for i in tokenizer(text, add_special_tokens=False).input_ids]


def documents(texts: Iterable[Text], tokenizer: Any, max_tokens: int, seed: int) -> list[Document]:
    """The texts as documents of at most `max_tokens` tokens, in an order drawn from `seed`. Texts whose
    prompt leaves no room, or whose answer has fewer than two tokens, are left out."""
    made = []
    for text in texts:
        head = opening(tokenizer, text.prompt)
        token_ids = (head + text.response_ids)[:max_tokens]
        if len(token_ids) - len(head) >= 2:
            made.append(Document(token_ids, len(head), text.temperature))
    random.Random(seed).shuffle(made)
    return made
