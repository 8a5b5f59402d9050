"""The list of runs: every order and search against a plain reference, and what a page costs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_runs import keep

from app.run_query import RunQuery, cursor_of, cursor_text
from app.run_schema import SORTS
from app.runs import RunRow, RunStore

FIELDS = {"date": "number", "model": "target", "speed": "tokens_per_second"}


def fill(store: RunStore, count: int) -> None:
    """Made-up rows, with many ties."""
    draw = random.Random(7)
    with store.transaction():
        for number in range(count):
            store._writer.execute(
                "INSERT INTO runs (run_id, created_at, state, imported, prompt, target, method, steps,"
                " committed, lossy, drafter, budget, temperature, tau, tokens_per_second)"
                " VALUES (?, '', 'finished', 0, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?)",
                (
                    f"r{number}",
                    draw.choice(["a", "B", "b", "Zebra", "äh"]),
                    draw.choice(["m", "M2"]),
                    draw.choice(["ddtree", "chain"]),
                    draw.randrange(4),
                    draw.choice(["", "ngram"]),
                    draw.choice([-1, 7, 15]),
                    draw.choice([0.0, 0.7, 1.0]),
                    draw.choice([-1.0, 1.5, 2.25]),
                    draw.uniform(0, 9),
                ),
            )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    store = RunStore(tmp_path_factory.mktemp("filled"))
    fill(store, 200)
    yield store
    store.close()


def key_of(row: RunRow, sort: str) -> Any:
    value = getattr(row, FIELDS.get(sort, sort))
    return value


def folded(value: Any) -> Any:
    """SQLite's NOCASE folds ASCII alone."""
    return "".join(c.lower() if c.isascii() else c for c in value) if isinstance(value, str) else value


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sort", SORTS)
def test_pages_put_together_are_the_whole_list_in_order(
    filled: RunStore, sort: str, descending: bool
) -> None:
    rows: list[RunRow] = []
    after = None
    while page := filled.runs(7, RunQuery(sort, descending, after=after)):
        rows += page
        after = cursor_of(cursor_text(key_of(page[-1], sort), page[-1].number))
    wanted = sorted(
        filled.runs(1000), key=lambda row: (folded(key_of(row, sort)), row.number), reverse=descending
    )
    assert [row.number for row in rows] == [row.number for row in wanted]
    assert len(rows) == 200


@pytest.mark.parametrize("sort", SORTS)
def test_a_page_costs_the_same_whatever_the_number_of_runs(tmp_path: Path, sort: str) -> None:
    """In units of the database's own work, from the beginning and from the middle of the list."""

    def work(count: int) -> int:
        store = RunStore(tmp_path / str(count))
        fill(store, count)
        middle = sorted(store.runs(count), key=lambda row: (folded(key_of(row, sort)), row.number))
        place = (key_of(middle[count // 2], sort), middle[count // 2].number)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1

        with store.reading() as reader:
            reader.set_progress_handler(tick, 10)
        assert len(store.runs(20, RunQuery(sort))) == 20
        assert len(store.runs(20, RunQuery(sort, after=place))) == 20
        with store.reading() as reader:
            reader.set_progress_handler(None, 0)
        store.close()
        return ticks

    few, many = work(100), work(3000)
    assert many <= few + 10, (few, many)


def test_words_are_found_in_prompt_text_tags_notes_and_model(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    river, lake = keep(store, 3, prompt="Name a RIVER " + "x" * 300 + " delta"), keep(store, 3, prompt="lake")
    assert store.annotate(river, ["slow run", "Long"], None)
    assert store.annotate(lake, None, 'quoted "words" 100%')

    def found(search: str) -> list[str]:
        return [row.run_id for row in store.runs(10, RunQuery(search=search))]

    assert found("river") == found("iver Name") == found("delta") == [river]
    assert found('"1 2 3 4 5"') == found("fake") == [lake, river]  # the text; the model
    assert (
        found("slow")
        == found('tag:long "slow run"')
        == found("tag:LONG")
        == found('tag:"slow run"')
        == [river]
    )
    assert found("words") == found("quoted 100%") == [lake]
    assert found("la") == [lake] and found("river lake") == found("tag:slow") == []
    assert found('" OR 1=1 --') == found("%_%") == found("' OR ''='") == []
    assert store.annotate(lake, [], "") and found("quoted") == []
    assert not store.annotate("none", [], "")
    store.close()


@pytest.mark.parametrize("text", ["", "x", "!!", "W10", "WzEsIDJd" * 2, cursor_text([1], 2)])
def test_a_place_that_nobody_named_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="place"):
        cursor_of(text)
