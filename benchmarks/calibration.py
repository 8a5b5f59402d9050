"""How often an n-gram continuation's next token is the target's: the weights of the n-gram and hybrid
drafters (`ddtree.drafters.continuations`), from text that the target wrote itself.

first      the newest occurrence of the longest suffix, by how many tokens before it agree
other      an older, different continuation, given that those before it failed

Each at every temperature of the text. Never calibrate on prompts that are measured on.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddtree.drafters.continuations import LONGEST_MATCH, NgramState, occurrences
from ddtree.models import load_tokenizer


class Counts:
    """Hits and tries by temperature and agreeing tokens."""

    def __init__(self) -> None:
        self._tries: dict[tuple[float, int], int] = defaultdict(int)
        self._hits: dict[tuple[float, int], int] = defaultdict(int)

    def add(self, temperature: float, matched: int, hit: bool) -> None:
        self._tries[temperature, matched] += 1
        self._hits[temperature, matched] += hit

    def print(self, title: str) -> None:
        print(f"{title:12}" + "".join(f"{matched:>16}" for matched in range(1, LONGEST_MATCH + 1)))
        for temperature in sorted({temperature for temperature, _ in self._tries}):
            cells = []
            for matched in range(1, LONGEST_MATCH + 1):
                tries, hits = self._tries[temperature, matched], self._hits[temperature, matched]
                cells.append(f"{hits / tries:7.3f} ({tries})" if tries else "none")
            print(f"T = {temperature:<8g}" + "".join(f"{cell:>16}" for cell in cells))


def answers(file: Path, every: int) -> Iterator[dict[str, Any]]:
    """Rows {prompt, temperature, response_ids} of a JSON lines file, gzip-compressed or not."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        for i, line in enumerate(lines):
            if i % every == 0:
                yield json.loads(line)


def count(prompt_ids: list[int], answer: dict[str, Any], first: Counts, other: Counts) -> None:
    """Counts at each token of one answer what the drafter would have said before it."""
    state = NgramState()
    temperature, tokens = float(answer["temperature"]), prompt_ids + answer["response_ids"]
    for end in range(len(prompt_ids), len(tokens)):
        state.extend(tokens[:end])
        tried: set[int] = set()
        for start, matched in occurrences(state):
            token = tokens[start]
            if token in tried:
                continue
            (other if tried else first).add(temperature, matched, token == tokens[end])
            tried.add(token)
            if token == tokens[end]:
                break


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="JSON lines {prompt, temperature, response_ids}, maybe .gz")
    parser.add_argument("--every", type=int, default=6, help="use each N-th answer, from the first on")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer()
    first, other = Counts(), Counts()
    done = 0
    for answer in answers(arguments.text, arguments.every):
        turn = [{"role": "user", "content": answer["prompt"]}]
        ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        count([int(i) for i in ids], answer, first, other)
        done += 1
        if done % 200 == 0:
            print(f"  {done} answers", flush=True)
    print(f"{done} answers; share of hits (tries), by agreeing tokens (the last: {LONGEST_MATCH} or more)")
    first.print("first")
    other.print("other")


if __name__ == "__main__":
    main()
