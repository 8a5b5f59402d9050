"""The list of stored runs on the page: found, sorted, edited, saved as files, deleted and brought back."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, expect
from replayed import ReplayedServer
from scope import OpenPage, Scope
from test_access import findings

from ddtree.trace_file import load_traces

PROMPTS = ["Alpha rivers", "beta lakes", "Gamma rivers", '=1+1 <b>"x"</b>']


@pytest.fixture
def server(recorded: Path, tmp_path: Path) -> Iterator[str]:
    """A server with four runs of 1, 2, 3 and 4 steps, imported, at temperatures 0, 0.5, 1 and 1.5."""
    with ReplayedServer(recorded, tmp_path, steps=3, seconds=0.02) as url:
        trace = json.loads(recorded.read_bytes())
        for i, prompt in enumerate(PROMPTS):
            trace["prompt"]["text"] = prompt
            trace["settings"] |= {"temperature": i / 2, "budget": 7 * (i + 1)}
            made = trace | {"steps": trace["steps"][: i + 1]}
            assert httpx.post(f"{url}/api/traces", content=json.dumps(made)).status_code == 201
        yield url


@pytest.fixture
def scope(open_page: OpenPage, server: str) -> Scope:
    scope = open_page(server)
    scope.ready()
    scope.handle("runs").click()
    expect(rows(scope)).to_have_count(4)
    return scope


def rows(scope: Scope) -> Locator:
    return scope.handle("runlist").locator("tr[data-run]")


def prompts(scope: Scope) -> list[str]:
    return scope.handle("runlist").locator(".runprompt").all_text_contents()


def runs_of(server: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server}/api/runs").json()["runs"]
    return found


def saved(scope: Scope, name: str, path: Path) -> Path:
    with scope.page.expect_download() as download:
        scope.handle(name).click()
    download.value.save_as(path)
    return path


def test_the_rows_are_the_servers_and_headings_sort(scope: Scope, server: str) -> None:
    assert prompts(scope) == PROMPTS[::-1]
    for row, run in zip(rows(scope).all(), runs_of(server), strict=True):
        cells = [text.strip() for text in row.locator("td").all_text_contents()]
        assert cells[2:6] == [run["target"], "ddtree", run["drafter"], str(run["budget"])]
        assert cells[7:9] == [str(run["steps"]), f"{run['tau']:.2f}"]
        assert float(cells[6]) == run["temperature"]
        assert cells[9] == f"{run['tokens_per_second']:.1f}"
    scope.handle("sort-steps").click()
    heading = scope.page.locator('th[data-sort="steps"]')
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(scope.handle("runlist").locator(".runprompt").first).to_have_text(PROMPTS[3])
    scope.handle("sort-steps").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(scope.handle("runlist").locator(".runprompt").first).to_have_text(PROMPTS[0])
    scope.handle("sort-prompt").click()
    expect(scope.handle("runlist").locator(".runprompt").first).to_have_text(PROMPTS[3])
    assert prompts(scope) == sorted(PROMPTS, key=str.lower)


def test_words_tags_and_notes_are_found(scope: Scope, server: str) -> None:
    row = rows(scope).nth(2)
    row.get_by_role("button", name="Edit tags").click()
    scope.handle("edit-tags").fill("slow one, paper, slow one")
    scope.handle("edit-notes").fill("<i>as printed</i>\nand more")
    scope.handle("edit-save").click()
    expect(row.locator(".chip")).to_have_text(["slow one", "paper"])
    expect(row.locator(".runnotes")).to_have_text("<i>as printed</i>")
    assert (runs_of(server)[2]["tags"], runs_of(server)[2]["notes"]) == (
        ["slow one", "paper"],
        "<i>as printed</i>\nand more",
    )
    row.locator(".chip").first.click()
    expect(rows(scope)).to_have_count(1)
    assert prompts(scope) == [PROMPTS[1]]
    expect(scope.handle("runs-search")).to_have_value('tag:"slow one"')
    scope.handle("runs-search").fill("rivers")
    expect(rows(scope)).to_have_count(4)  # in two prompts, and in every text
    scope.handle("runs-search").fill("rivers gamma")
    expect(rows(scope)).to_have_count(1)
    scope.handle("runs-search").fill("printed more")
    expect(rows(scope)).to_have_count(1)
    scope.handle("runs-search").fill("nothing like it")
    expect(scope.handle("runs-blank")).to_contain_text("No run has all of these words")
    scope.handle("runs-search").fill("")
    expect(rows(scope)).to_have_count(4)


def test_a_refused_edit_says_why_and_escape_leaves_it(scope: Scope) -> None:
    scope.allowed.append("422")  # the browser writes refused requests to the console
    rows(scope).first.get_by_role("button", name="Edit tags").click()
    scope.handle("edit-tags").fill("x" * 65)
    scope.page.keyboard.press("Enter")
    expect(scope.page.locator(".editor .wrong")).to_contain_text("at most 64 characters")
    scope.page.keyboard.press("Escape")
    expect(scope.page.locator(".editor")).to_have_count(0)
    expect(scope.handle("runs-dialog")).to_be_visible()


def test_chosen_runs_are_saved_as_json_and_the_table_as_csv(
    scope: Scope, server: str, tmp_path: Path
) -> None:
    for n in (0, 2):
        rows(scope).nth(n).get_by_role("checkbox").check()
    expect(scope.handle("runs-export")).to_have_text("Export 2")
    traces = load_traces(saved(scope, "runs-export", tmp_path / "runs.json").read_bytes())
    assert [trace.prompt.text for trace in traces] == [PROMPTS[3], PROMPTS[1]]
    chosen = saved(scope, "runs-csv", tmp_path / "chosen.csv").read_text(encoding="utf-8")
    assert len(list(csv.reader(chosen.splitlines()))) == 3
    scope.handle("runs-all").check()
    scope.handle("runs-all").uncheck()
    whole = saved(scope, "runs-csv", tmp_path / "all.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(whole.splitlines()))
    assert [row["prompt"] for row in table] == ["'" + PROMPTS[3], *PROMPTS[2::-1]]
    assert [row["tau"] for row in table] == [str(run["tau"]) for run in runs_of(server)]


def test_deleted_runs_come_back_one_after_the_other(scope: Scope, server: str) -> None:
    for n in (1, 3):
        rows(scope).nth(n).get_by_role("checkbox").check()
    scope.handle("runs-delete").click()
    expect(rows(scope)).to_have_count(2)
    expect(scope.handle("runs-undo-bar")).to_contain_text("Deleted 2 runs, the last one “Alpha rivers”")
    assert len(runs_of(server)) == 2
    scope.page.keyboard.press("Enter")  # the focus is on Undo
    expect(rows(scope)).to_have_count(3)
    scope.handle("runs-undo").click()
    expect(rows(scope)).to_have_count(4)
    expect(scope.handle("runs-undo")).to_be_hidden()
    assert [run["prompt"] for run in runs_of(server)] == PROMPTS[::-1]


def test_more_runs_follow_and_a_run_is_opened(scope: Scope, server: str, recorded: Path) -> None:
    scope.page.keyboard.press("Escape")
    expect(scope.handle("runs-dialog")).to_be_hidden()
    one = json.loads(recorded.read_bytes())
    one["steps"] = one["steps"][:1]
    assert httpx.post(f"{server}/api/traces", content=json.dumps([one] * 60)).json()["runs"] == 60
    scope.handle("runs").click()
    expect(rows(scope)).to_have_count(50)
    expect(scope.handle("runs-facts")).to_contain_text("there are more")
    scope.handle("runs-more").click()
    expect(rows(scope)).to_have_count(64)
    expect(scope.handle("runs-more")).to_be_hidden()
    rows(scope).nth(62).locator(".runopen").click()
    expect(scope.handle("runs-dialog")).to_be_hidden()
    scope.until("store.run?.head.prompt.text === 'beta lakes' && store.run.ready === 2")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 800])
def test_the_list_is_for_everyone(open_page: OpenPage, server: str, theme: str, width: int) -> None:
    scope = open_page(server, width=width, theme=theme)
    run_id = runs_of(server)[1]["run_id"]
    httpx.patch(f"{server}/api/runs/{run_id}", json={"tags": ["paper"], "notes": "as printed"})
    scope.ready()
    scope.handle("runs").click()
    rows(scope).nth(0).get_by_role("checkbox").check()
    rows(scope).nth(2).get_by_role("button", name="Edit tags").click()
    expect(scope.handle("edit-notes")).to_be_visible()
    assert findings(scope) == []
    assert scope.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
