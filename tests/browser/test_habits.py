"""Habits: undo and presets of settings, keys, definitions, the tour, remembered panes, touch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from replayed import ReplayedServer
from scope import OpenPage, Scope


@pytest.fixture
def replayed(recorded: Path, tmp_path: Path) -> Iterator[str]:
    with ReplayedServer(recorded, tmp_path, steps=400, seconds=0.02) as url:
        yield url


@pytest.fixture
def page(open_page: OpenPage, replayed: str, recorded: Path) -> Scope:
    """The page with the recorded run open."""
    scope = open_page(replayed)
    scope.ready()
    scope.open(recorded)
    scope.shows(scope.store("store.run.newest"))
    return scope


def form(scope: Scope) -> dict[str, Any]:
    load = "(await import('/static/parts/controls.js')).formValues()"
    values: dict[str, Any] = scope.page.evaluate(f"async () => {load}")
    return values


def press(scope: Scope, *keys: str) -> None:
    scope.page.locator("h1").click()
    for key in keys:
        scope.page.keyboard.press(key)


# ---- undo and presets ----


def test_settings_are_undone_and_done_again(page: Scope) -> None:
    before = form(page)
    page.handle("budget").fill("31")
    page.handle("budget").press("Tab")
    page.set(method="chain")
    page.handle("temperature").fill("0.5")
    page.handle("temperature").press("Tab")
    changed = form(page)
    press(page, "Control+z")
    assert form(page) == {**changed, "temperature": before["temperature"]}
    page.handle("undo").click()
    page.handle("undo").click()
    assert form(page) == before
    expect(page.handle("undo")).to_be_disabled()
    press(page, "Control+Shift+z", "Control+y")
    page.handle("redo").click()
    assert form(page) == changed
    expect(page.handle("redo")).to_be_disabled()


def test_undo_inside_a_text_field_is_the_fields_own(page: Scope) -> None:
    page.handle("budget").fill("31")
    page.handle("budget").press("Tab")
    page.handle("prompt").fill("some words")
    page.handle("prompt").press("Control+z")
    assert form(page)["budget"] == 31


def test_a_drag_is_one_change_and_undo_reaches_a_run_that_goes_on(open_page: OpenPage, replayed: str) -> None:
    scope = open_page(replayed)
    scope.ready()
    scope.run("On and on")
    scope.wait_step(1)
    before = form(scope)["budget"]
    for value in (20, 25, 30):
        scope.handle("budget-slider").fill(str(value))
    scope.until("store.run.settings.budget === 30")
    press(scope, "Control+z")
    scope.until(f"store.run.settings.budget === {before}")
    expect(scope.handle("undo")).to_be_disabled()
    scope.handle("stop").click()
    scope.finished()


def test_presets_are_one_change_and_own_ones_are_remembered(page: Scope) -> None:
    before = form(page)
    page.handle("preset").select_option("Chain")
    assert (form(page)["method"], form(page)["budget"]) == ("chain", 7)
    page.handle("undo").click()
    assert form(page) == before
    page.handle("temperature").fill("0.7")
    page.handle("temperature").press("Tab")
    page.page.get_by_text("Save…").click()
    page.handle("preset-name").fill("Chain")
    page.handle("preset-save").click()
    assert page.handle("preset-name").evaluate("field => field.validationMessage").startswith("“Chain” is")
    page.handle("preset-name").fill("mine")
    page.handle("preset-name").press("Enter")
    expect(page.handle("preset")).to_have_value("mine")
    page.handle("temperature").fill("0")
    page.handle("temperature").press("Tab")
    page.page.reload()
    page.ready()
    expect(page.handle("temperature")).to_have_value("0")
    page.handle("preset").select_option("mine")
    expect(page.handle("temperature")).to_have_value("0.7")
    page.handle("preset-delete").click()
    expect(page.handle("preset").locator('option[value="mine"]')).to_have_count(0)


# ---- keys ----


def test_keys_do_what_their_list_says(page: Scope) -> None:
    press(page, "?")
    expect(page.handle("help-dialog")).to_be_visible()
    listed = set(page.handle("keylist").locator("kbd").all_text_contents())
    assert {
        "space",
        ".",
        "S",
        "←",
        "→",
        "Home",
        "End",
        "L",
        "[",
        "]",
        "T",
        "N",
        "W",
        "X",
        "P",
        "1",
        "2",
    } < listed
    assert {"Z", "D", "R", "I", "E", "?", "Enter", "Tab"} < listed
    page.page.keyboard.press("Escape")
    press(page, "Home")
    page.shows(0)
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft")
    page.shows(1)
    node = page.store("store.selected")
    press(page, "Home", "]")
    page.shows(0)
    assert node is not None
    first = page.store("store.selected")
    press(page, "[")
    assert page.store("store.selected") != first
    for key, name in (("t", "tree"), ("x", "text"), ("p", "prompt"), ("w", "whatif")):
        press(page, key)
        expect(page.handle(name)).to_be_focused()
    press(page, "n")
    assert page.page.evaluate("document.activeElement.matches('tr[data-node]')")
    tabs = page.page.locator('.tabs [role="tab"]')
    for index in range(tabs.count()):
        press(page, str(index + 1))
        expect(tabs.nth(index)).to_be_focused()
        expect(tabs.nth(index)).to_have_attribute("aria-selected", "true")
    press(page, "1")
    theme = page.page.evaluate("document.documentElement.dataset.theme")
    press(page, "d")
    assert page.page.evaluate("document.documentElement.dataset.theme") != theme


def test_space_runs_pauses_and_resumes(open_page: OpenPage, replayed: str) -> None:
    scope = open_page(replayed)
    scope.ready()
    scope.handle("prompt").fill("On and on")
    press(scope, " ")
    scope.until("store.run?.state === 'running' && store.run.newest > 0")
    press(scope, " ")
    scope.until("store.run.state === 'paused'")
    newest = scope.store("store.run.newest")
    press(scope, ".")
    scope.until(f"store.run.state === 'paused' && store.run.newest === {newest + 1}")
    press(scope, " ")
    scope.until("store.run.state === 'running'")
    press(scope, "l")
    assert scope.store("store.follow") is False
    press(scope, "s")
    scope.finished()


# ---- words ----


def test_every_word_is_defined_where_it_stands(page: Scope) -> None:
    used = set(page.page.locator("[data-term]").evaluate_all("all => all.map((one) => one.dataset.term)"))
    terms = set(page.handle("terms").locator("dt").all_text_contents())
    assert len(used) > 25 and used <= terms
    page.page.get_by_role("columnheader", name="log-weight").hover()
    tip = page.page.get_by_role("tooltip")
    expect(tip).to_contain_text("sum of the drafter’s log-probabilities")
    assert page.page.locator('[aria-describedby="tip"]').count() == 1
    page.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_the_tour_has_five_stops_and_blocks_nothing(page: Scope, replayed: str) -> None:
    tour = page.handle("tour")
    expect(tour).to_be_hidden()  # a driven browser is no visitor
    page.page.evaluate("localStorage.clear()")
    page.page.goto(f"{replayed}/?tour")
    page.ready()
    expect(tour).to_be_visible()
    titles = []
    for stop in range(1, 6):
        expect(page.handle("tour-at")).to_have_text(f"{stop} of 5")
        titles.append(tour.locator("h2").text_content())
        box, ring = tour.bounding_box(), page.page.locator("#tour-ring").bounding_box()
        assert box and ring and box["x"] >= 0 and box["y"] + box["height"] <= 900
        page.handle("tour-next").press("Enter")
    assert len(set(titles)) == 5
    expect(tour).to_be_hidden()
    assert page.page.evaluate("localStorage.getItem('ddtree-tour')") == '"seen"'
    page.handle("help").click()
    page.handle("take-tour").click()
    expect(page.handle("tour-next")).to_be_focused()
    page.handle("prompt").fill("the page works behind it")
    page.handle("tour-skip").click()
    expect(tour).to_be_hidden()
    page.handle("help").click()
    page.handle("take-tour").click()
    page.page.keyboard.press("Escape")
    expect(tour).to_be_hidden()


# ---- panes, touch ----


def test_panes_keep_the_sizes_they_were_given(page: Scope) -> None:
    lines = {"Width of the settings": ("ArrowRight", 32), "Width of the output": ("ArrowLeft", 32)}
    for name, (key, _) in lines.items():
        line = page.page.get_by_role("separator", name=name)
        line.press(key)
        line.press(key)
    page.page.get_by_role("separator", name="Height of the tree").press("ArrowDown")
    sizes = [page.page.locator(s).bounding_box() for s in (".rail.left", ".rail.right", ".plot")]
    assert sizes[0] and sizes[0]["width"] == 312 and sizes[1] and sizes[1]["width"] == 372
    page.page.reload()
    page.ready()
    again = [page.page.locator(s).bounding_box() for s in (".rail.left", ".rail.right", ".plot")]
    assert [(box or {}).get("width") for box in again] == [(box or {}).get("width") for box in sizes]
    assert again[2] and sizes[2] and again[2]["height"] == sizes[2]["height"]
    for name in lines:
        page.page.get_by_role("separator", name=name).press("Delete")
    box = page.page.locator(".rail.left").bounding_box()
    assert box and box["width"] == 280


SMALL = """
() => [...document.querySelectorAll('button, input, select, summary, [role="tab"], tr[data-node]')]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest('.skip, .offscreen'))
  .map((one) => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && (box.height < 24 || box.width < 24))
  .map(([one, box]) => `${one.outerHTML.slice(0, 90)} ${box.width}x${box.height}`)
"""


def test_fingers_have_targets_of_24_pixels(chromium: Browser, replayed: str, recorded: Path) -> None:
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900}, has_touch=True, is_mobile=True, reduced_motion="reduce"
    )
    scope = Scope(context.new_page(), replayed)
    scope.ready()
    scope.open(recorded)
    assert scope.page.evaluate("matchMedia('(pointer: coarse)').matches")
    assert scope.page.evaluate(SMALL) == []
    scope.row(1).tap()
    assert scope.store("store.selected") == 1
    box = (
        scope.page.locator('[data-testid="tree"] svg text').filter(has_text=re.compile("^2 ")).bounding_box()
    )
    assert box is not None
    scope.page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    scope.until("store.selected === 2")
    context.close()
    scope.assert_silent()
