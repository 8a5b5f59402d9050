"""The address names what is shown: copied, it opens the same; back and forward; running floods nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope

STEPS = 8


@pytest.fixture
def server(recorded: Path, tmp_path: Path) -> Iterator[str]:
    with ReplayedServer(recorded, tmp_path, steps=STEPS, seconds=0.02) as url:
        yield url


@pytest.fixture
def scope(open_page: OpenPage, server: str) -> Scope:
    scope = open_page(server)
    scope.ready()
    return scope


def part(scope: Scope) -> str:
    """What stands after the #, at rest."""
    scope.page.wait_for_timeout(300)
    return scope.page.url.partition("#")[2]


def entries(scope: Scope) -> int:
    return int(scope.page.evaluate("history.length"))


def shown(scope: Scope) -> Any:
    return scope.store("[store.run?.id ?? null, store.at, store.selected, store.tab, store.whatif]")


def test_a_copied_address_opens_the_same(scope: Scope, open_page: OpenPage) -> None:
    scope.run("rivers")
    scope.finished()
    assert part(scope) == scope.store("store.run.id")
    scope.set(temperature=0.7, budget=9, seed="12345678901234567890", method="chain")
    scope.page.locator("h1").click()
    scope.page.keyboard.press("Home")
    scope.page.keyboard.press("ArrowRight")
    scope.shows(1)
    scope.row(2).click()
    scope.handle("whatif").fill("5")
    scope.handle("tab-acceptance").click()
    expect(scope.handle("tab-acceptance")).to_have_attribute("aria-selected", "true")
    run_id = scope.store("store.run.id")
    assert shown(scope) == [run_id, 1, 2, "acceptance", 5]
    found = part(scope)
    assert found.split("&")[0] == run_id and set(found.split("&")[1:]) == {
        "view=acceptance", "step=1", "node=2", "whatif=5", "temperature=0.7", "budget=9", "method=chain",
        "seed=12345678901234567890",
    }  # fmt: skip
    other = open_page(scope.page.url)
    other.ready()
    other.until("store.view?.step.index === 1 && store.selected === 2")
    assert shown(other) == shown(scope)
    assert part(other) == found
    names = ("temperature", "budget", "seed")
    assert [other.handle(name).input_value() for name in names] == [
        scope.handle(name).input_value() for name in names
    ]
    assert other.page.locator('[data-testid="method"] input:checked').input_value() == "chain"


def test_back_and_forward_go_through_runs_views_and_steps(scope: Scope) -> None:
    scope.run("first")
    scope.finished()
    first = scope.store("store.run.id")
    scope.run("second")
    scope.finished()
    second = scope.store("store.run.id")
    part(scope)
    scope.handle("tab-whatif").click()
    assert part(scope) == f"{second}&view=whatif"
    scope.handle("tab-step").click()
    part(scope)
    scope.page.locator("h1").click()
    scope.page.keyboard.press("Home")
    scope.shows(0)
    assert part(scope) == f"{second}&step=0"
    scope.page.go_back()
    scope.until(f"store.at === {STEPS - 1} && store.tab === 'step'")
    scope.page.go_back()
    scope.until("store.tab === 'whatif'")
    scope.page.go_back()
    scope.until("store.tab === 'step'")
    scope.page.go_back()
    scope.until(f"store.run.id === '{first}' && store.run.ready === {STEPS}")
    scope.page.go_forward()
    scope.until(f"store.run.id === '{second}'")
    for _ in range(3):
        scope.page.go_forward()
        scope.page.wait_for_timeout(200)
    scope.until(f"store.run.id === '{second}' && store.at === 0")
    assert part(scope) == f"{second}&step=0"


def test_the_list_of_runs_has_an_address(scope: Scope, open_page: OpenPage) -> None:
    for prompt in ("rivers", "lakes"):
        scope.run(prompt)
        scope.finished()
    scope.handle("runs").click()
    scope.handle("runs-search").fill("lakes")
    scope.handle("sort-steps").click()
    expect(scope.handle("runlist").locator("tr[data-run]")).to_have_count(1)
    run_id = scope.store("store.run.id")
    assert part(scope) == f"{run_id}&view=runs&search=lakes&sort=steps"
    other = open_page(scope.page.url)
    expect(other.handle("runs-dialog")).to_be_visible()
    expect(other.handle("runs-search")).to_have_value("lakes")
    expect(other.page.locator('th[data-sort="steps"]')).to_have_attribute("aria-sort", "descending")
    expect(other.handle("runlist").locator("tr[data-run]")).to_have_count(1)
    scope.page.go_back()
    expect(scope.handle("runs-dialog")).to_be_hidden()
    scope.page.go_forward()
    expect(scope.handle("runs-dialog")).to_be_visible()
    scope.page.keyboard.press("Escape")
    assert part(scope) == run_id


def test_running_adds_no_entry(open_page: OpenPage, recorded: Path, tmp_path: Path) -> None:
    with ReplayedServer(recorded, tmp_path, steps=60, seconds=0.01) as url:
        scope = open_page(url)
        scope.ready()
        before = entries(scope)
        scope.run("rivers")
        scope.finished()
        assert part(scope) == scope.store("store.run.id")
        assert entries(scope) == before
        scope.handle("tree").focus()
        for _ in range(30):
            scope.page.keyboard.press("ArrowUp")
        scope.page.locator("h1").click()
        for _ in range(30):
            scope.page.keyboard.press("ArrowLeft")
        scope.shows(29)
        assert part(scope).endswith("&step=29")
        assert entries(scope) <= before + 4


def test_an_address_of_no_run_says_so_and_is_forgotten(open_page: OpenPage, server: str) -> None:
    scope = open_page(f"{server}#20250101-000000-abcdef&step=3")
    expect(scope.handle("error")).to_contain_text("20250101-000000-abcdef")
    scope.ready()
    assert part(scope) == ""


@pytest.mark.parametrize("hash", ["#view=<b>&step=x&node=999999999999&temperature=hot", "#&&==&%25&run=1"])
def test_a_broken_address_does_no_harm(open_page: OpenPage, server: str, hash: str) -> None:
    scope = open_page(server + hash)
    scope.ready()
    assert shown(scope)[:2] == [None, -1]
    scope.run("rivers", temperature=0)
    scope.finished()
