"""A bench's prompts: read from JSON lines, thinned to a fixed sample, cut to a length."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

OWN_PROMPTS = Path(__file__).parent / "prompts.jsonl"

NO_CATEGORY = "all"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    id: str
    category: str
    text: str
    tokens: int | None = None  # with the template, once `fit` has counted them
    cut: bool = False


def read_prompts(path: Path) -> list[BenchPrompt]:
    """JSON lines with `prompt`, or `turns` of which the first is taken; `id` (default: the line's number) and
    `category` are optional. Raises ValueError that names file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"--prompts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompts {path}: not UTF-8 at byte {error.start}") from None
    prompts = [_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ValueError(f"--prompts {path}: it has no lines; write one JSON object with `prompt` a line")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ValueError(f"--prompts {path}: the id {prompt.id!r} stands there twice")
        seen.add(prompt.id)
    return prompts


def _prompt(path: Path, number: int, line: str) -> BenchPrompt:
    where = f"--prompts {path}, line {number}"
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: it must be an object with `prompt` or `turns`")
    turns = row.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else row.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: it needs a text in `prompt`, or a list of texts in `turns`")
    return BenchPrompt(str(row.get("id", number)), str(row.get("category", NO_CATEGORY)), text)


def of_categories(prompts: Sequence[BenchPrompt], categories: Sequence[str]) -> list[BenchPrompt]:
    """Those of these categories. Raises ValueError for one that no prompt has."""
    there = {prompt.category for prompt in prompts}
    for category in categories:
        if category not in there:
            raise ValueError(
                f"--categories {category}: no prompt has it; there are {', '.join(sorted(there))}"
            )
    return [prompt for prompt in prompts if prompt.category in categories]


def sample(prompts: Sequence[BenchPrompt], count: int) -> list[BenchPrompt]:
    """`count` prompts, always the same: each category has its share (largest remainders, one at least where
    there is room), taken at even distances from its first prompt on. Order is kept."""
    groups: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(prompt.category, []).append(index)
    if count >= len(prompts):
        return list(prompts)
    least = 1 if count >= len(groups) else 0
    shares = {name: count * len(group) / len(prompts) for name, group in groups.items()}
    taken = {name: max(least, int(share)) for name, share in shares.items()}
    by_remainder = sorted(groups, key=lambda name: taken[name] - shares[name])
    for step in range(abs(count - sum(taken.values()))):
        if sum(taken.values()) < count:
            taken[by_remainder[step % len(groups)]] += 1
        else:  # the ones guaranteed above are paid for by the largest
            taken[max(taken, key=lambda name: taken[name])] -= 1
    chosen = [
        group[i * len(group) // taken[name]] for name, group in groups.items() for i in range(taken[name])
    ]
    return [prompts[index] for index in sorted(chosen)]


def fit(prompt: BenchPrompt, count_tokens: Callable[[str], int], limit: int) -> BenchPrompt:
    """The prompt with its text cut at the end so that it has `limit` tokens with the template around it, or
    as many below as the last character allows. `count_tokens` counts a text's, the template's included.
    Raises ValueError when the template alone is longer."""
    tokens = count_tokens(prompt.text)
    if tokens <= limit:
        return replace(prompt, tokens=tokens)
    if count_tokens("") >= limit:
        raise ValueError(
            f"--prompt-limit {limit}: the template alone has {count_tokens('')} tokens; use more"
        )
    low, high = 0, len(prompt.text)  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if count_tokens(prompt.text[:middle]) <= limit:
            low = middle
        else:
            high = middle
    # A token that is cut short may count more than the whole one: longer prefixes can fit again.
    for longer in range(min(low + 16, len(prompt.text) - 1), low, -1):
        if count_tokens(prompt.text[:longer]) <= limit:
            low = longer
            break
    text = prompt.text[:low]
    return replace(prompt, text=text, tokens=count_tokens(text), cut=True)
