"""The synthesise stage: prompts and answers from the target itself.

A prompt is what the target writes after the opening of the chat template's user turn, sampled; its answer is
the target's own, at one of the temperatures in turn. The user's own prompts come first. What the drafter
learns is what the target says, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ddtree.storage import Progress
from ddtree.training.generate import generate
from ddtree.training.settings import TrainSettings
from ddtree.training.texts import Text, opening, read_texts, write_texts

TEMPERATURES = (0.0, 0.7, 1.0)
PROMPT_TOP_P = 0.95
PROMPT_TOKENS = 64
_MARK = "\u2063prompt\u2063"
"""Stands for the user's words while the template is cut at them."""


def user_opening(tokenizer: Any) -> list[int]:
    """Token ids of the chat template up to the user's words; of the beginning of a text where there is no
    template."""
    if tokenizer.chat_template is None:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return [int(start)]
    message = [{"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=False)
    return [int(i) for i in tokenizer(text.partition(_MARK)[0], add_special_tokens=False).input_ids]


def synthesise(
    file: Path,
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    settings: TrainSettings,
    *,
    rows: int,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> bool:
    """Appends texts to `file` until it holds settings.answers of them; whether it came to that. A batch's
    texts are written together, each batch is drawn from (seed, texts before it): a kill loses one batch."""
    stops = stop_token_ids(model, tokenizer)
    held = len(_whole_lines(file))
    while held < settings.answers:
        progress("synthesising texts", held / settings.answers)
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + held)
        count = min(rows, settings.answers - held)
        wanted = prompts[held : held + count]
        if len(wanted) < count:
            tokens = min(PROMPT_TOKENS, settings.max_tokens // 4)
            more = _own_prompts(model, tokenizer, count - len(wanted), tokens, stops, generator, should_stop)
            if more is None:
                return False
            wanted += more
        heads = [opening(tokenizer, prompt) for prompt in wanted]
        heat = [TEMPERATURES[(held + i) % len(TEMPERATURES)] for i in range(count)]
        room = settings.max_tokens - max(len(head) for head in heads)
        if room < 2:
            raise ValueError(
                f"a prompt has {settings.max_tokens - room} tokens; max_tokens {settings.max_tokens} leaves "
                "no room for an answer: shorten it or raise max_tokens"
            )
        answers = generate(
            model,
            heads,
            heat,
            top_p=1.0,
            max_new_tokens=min(room, 256),
            stop_token_ids=stops,
            generator=generator,
            should_stop=should_stop,
        )
        if answers is None:
            return False
        write_texts(file, _texts(wanted, heat, answers, stops))
        held += count
    return True


def _texts(
    prompts: list[str], heat: list[float], answers: list[list[int]], stops: list[int]
) -> Iterator[Text]:
    for prompt, temperature, answer in zip(prompts, heat, answers, strict=True):
        finished = bool(answer) and answer[-1] in stops
        yield Text(prompt=prompt, temperature=temperature, response_ids=answer, finished=finished)


def _own_prompts(
    model: Any,
    tokenizer: Any,
    count: int,
    max_tokens: int,
    stops: list[int],
    generator: torch.Generator,
    should_stop: Callable[[], bool],
) -> list[str] | None:
    """User turns that the target writes; those that come out empty are the words of a greeting."""
    start = user_opening(tokenizer)
    written = generate(
        model,
        [start] * count,
        [1.0] * count,
        top_p=PROMPT_TOP_P,
        max_new_tokens=max_tokens,
        stop_token_ids=stops,
        generator=generator,
        should_stop=should_stop,
    )
    if written is None:
        return None
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() or "Hello" for ids in written]


def stop_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Those of the generation config, one or several, and the tokenizer's."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, (list, tuple)) else [configured]
    ids = [int(one) for one in [*several, tokenizer.eos_token_id] if one is not None]
    return list(dict.fromkeys(ids))


def _whole_lines(file: Path) -> list[Text]:
    """The file's texts; the rest of a line that a kill cut off is taken away."""
    if not file.is_file():
        return []
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        file.write_bytes(data[:whole])
    return read_texts(file)
