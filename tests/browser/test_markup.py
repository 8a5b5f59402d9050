"""Tokens that look like markup, in every place they are shown: literally, and no link among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from scope import Scope

HOSTILE = [
    "<b>",
    "<br>",
    '<a href="javascript:alert(1)">x</a>',
    "<|im_end|>",
    "&lt;",
    "%{y}",
    "\n",
    "\t",
    "\u200f",
    "",
    "<F0><9F>",
    "<img src=x onerror=alert(1)>",
    "$x^2$",
    " two  spaces ",
    "\u202eback",
]
SHOWN = {
    "\n": "↵",
    "\t": "⇥",
    "\u200f": "<U+200F>",
    "": "∅",
    " two  spaces ": "␣two  spaces␣",
    "\u202eback": "<U+202E>back",
}


def shown(text: str) -> str:
    return SHOWN.get(text, text)


@pytest.fixture
def hostile(recorded: Path, tmp_path: Path) -> Path:
    """The recorded run with every text replaced; ids, arrays and decisions are as they were."""
    trace: dict[str, Any] = json.loads(recorded.read_bytes())

    def texts(count: int, start: int) -> list[str]:
        return [HOSTILE[(start + i) % len(HOSTILE)] for i in range(count)]

    for step in trace["steps"]:
        begin = 3 * step["index"]
        step["root"]["text"] = texts(1, begin)[0]
        step["tree"]["texts"] = texts(len(step["tree"]["texts"]), begin)
        step["committed"]["texts"] = texts(len(step["committed"]["texts"]), begin)
        step["accept"]["bonus_text"] = texts(1, begin + 2)[0]
        for row in step["target"]["rows"]:
            row["texts"] = texts(len(row["texts"]), begin + 1)
            row["draft_texts"] = texts(len(row["draft_texts"]), begin + 2)
    trace["prompt"]["text"] = "".join(HOSTILE)
    trace["prompt"]["texts"] = texts(len(trace["prompt"]["texts"]), 0)
    trace["target"]["name"] = "<b>target</b>"
    trace["drafter"]["name"] = '<a href="x">drafter</a>'
    trace["drafter"]["not_used"] = "<i>not</i> used &amp; why"
    path = tmp_path / "<b>hostile.json"
    path.write_text(json.dumps(trace, ensure_ascii=False), encoding="utf-8")
    return path


def test_markup_is_shown_as_it_is(live: Scope, hostile: Path) -> None:
    trace = json.loads(hostile.read_bytes())
    live.open(hostile)
    seen: set[str] = set()
    for step in trace["steps"][:8]:
        live.page.locator(f'[data-testid="text"] [data-group="{step["index"]}"]').evaluate(
            "(group) => group.firstElementChild.click()"
        )
        live.shows(step["index"])
        expected = [shown(text) for text in [step["root"]["text"], *step["tree"]["texts"]]]
        assert live.cells(2) == expected
        labels = live.labels
        for n, text in enumerate(expected[:6]):
            clipped = text if len(text) <= 18 else text[:17] + "…"
            assert f"{n} {clipped}" in labels
        assert (live.verdict("bonus").text_content() or "").count(shown(step["accept"]["bonus_text"])) >= 1
        live.verdict("bonus").click()
        why = live.page.locator("#why ol.target .tk").all_text_contents()
        last = step["target"]["rows"][-1]
        assert why == [shown(text) for text in last["texts"]]
        chips = live.page.locator("#committed .c").all_text_contents()
        path = [step["tree"]["texts"][n - 1] for n in step["accept"]["accept_index"][1:]]
        committed = [*path, step["accept"]["bonus_text"]][: len(step["committed"]["texts"])]
        assert chips == [shown(text) for text in committed]
        seen.update(step["tree"]["texts"])
    assert set(HOSTILE) <= seen
    assert live.page.locator("a").count() == 1  # "Skip to the step"
    assert live.page.locator("main img, main br, svg a, bdi b, .t b").count() == 0


def test_text_is_marked_by_index_and_keeps_every_character(live: Scope, hostile: Path) -> None:
    trace = json.loads(hostile.read_bytes())
    live.open(hostile)
    spans = live.page.locator('[data-testid="text"] [data-step]')
    texts = [text for step in trace["steps"] for text in step["committed"]["texts"]]
    expect(spans).to_have_count(len(texts))
    assert [text.replace("↵\n", "\n") for text in spans.all_text_contents()] == texts
    steps = spans.evaluate_all("spans => spans.map((span) => Number(span.dataset.step))")
    assert steps == [step["index"] for step in trace["steps"] for _ in step["committed"]["texts"]]
    prompt = live.page.locator('[data-testid="text"] [data-origin="prompt"]')
    assert [text.replace("↵\n", "\n") for text in prompt.all_text_contents()] == trace["prompt"]["texts"]


def test_names_and_sentences_of_a_file_are_text(live: Scope, hostile: Path) -> None:
    live.open(hostile)
    expect(live.page.locator("#chip-target")).to_have_text("<b>target</b>")
    expect(live.page.locator("#chip-drafter")).to_contain_text('<a href="x">drafter</a>')
    expect(live.handle("notice")).to_contain_text("<i>not</i> used &amp; why")
    live.handle("runs").click()
    prompt = live.handle("runlist").locator(".runprompt").first
    expect(prompt).to_contain_text('<a href="javascript:alert(1)">x</a>')


def test_the_card_shows_bytes_and_markup(live: Scope, hostile: Path) -> None:
    live.open(hostile)
    live.page.locator("h1").click()
    live.page.keyboard.press("Home")
    live.shows(0)
    texts = live.store("store.view.nodes.map((node) => node.text)")
    live.page.keyboard.press("t")
    for n in (1, 2, 3):
        live.row(n).click()
        live.handle("tree").focus()
        live.page.keyboard.press("ArrowLeft")
        live.row(n).click()
        live.handle("tree").dispatch_event("blur")
        live.point_at(f"{n} ")
        expect(live.page.locator("#card .tk")).to_have_text(shown(texts[n]))
