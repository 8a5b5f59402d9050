"""Every view for everyone: axe with a run loaded, everything by keyboard, the tree for those who hear it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from raced import RacingServer
from scope import OpenPage, Scope
from test_access import findings


@pytest.fixture
def replayed(recorded: Path, tmp_path: Path) -> Iterator[str]:
    with RacingServer(recorded, tmp_path) as url:
        yield url


def with_a_run(open_page: OpenPage, url: str, recorded: Path, theme: str = "light") -> Scope:
    """The recorded run open, and a race run to its end."""
    scope = open_page(url, theme=theme)
    scope.ready()
    scope.open(recorded)
    scope.shows(scope.store("store.run.newest"))
    scope.handle("prompt").fill("Go")
    scope.handle("tab-race").click()
    scope.handle("race-start").click()
    expect(scope.handle("lanes-facts")).to_contain_text("finished")
    expect(scope.handle("differences").locator("li").first).to_be_visible()
    return scope


def views(scope: Scope) -> Iterator[str]:
    """Each view in turn, shown and quiet."""
    tabs = scope.page.locator('.tabs [role="tab"]')
    assert tabs.count() >= 4
    for tab in tabs.all():
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        scope.page.wait_for_timeout(400)  # what is drawn in a quiet moment, too
        yield str(tab.get_attribute("data-tab"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(
    open_page: OpenPage, replayed: str, recorded: Path, theme: str
) -> None:
    scope = with_a_run(open_page, replayed, recorded, theme)
    found = {view: findings(scope) for view in views(scope)}
    assert {view: faults for view, faults in found.items() if faults} == {}


REACHABLE = """
() => {
  const shown = (one) => one.checkVisibility({ visibilityProperty: true }) && one.getClientRects().length > 0;
  const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, ' +
    '[role="slider"], [role="separator"], [tabindex="0"]')];
  const id = (one) => (one.dataset.walk ??= String(Math.random()));
  const wanted = all.filter((one) => shown(one) && !one.disabled && one.type !== 'hidden' &&
    !one.closest('[inert]') && one.getAttribute('role') !== 'tab' && !one.matches('.skip'));
  const groups = new Map();
  const key = (one) => (one.type === 'radio' ? 'radio ' + one.name : id(one));
  for (const one of wanted) groups.set(key(one), one.outerHTML.slice(0, 100));
  return [...groups];
}
"""
HERE = """
() => {
  const one = document.activeElement;
  return one.type === 'radio' ? 'radio ' + one.name : (one.dataset.walk ?? null);
}
"""


def test_everything_is_reached_by_tab_in_every_view(
    open_page: OpenPage, replayed: str, recorded: Path
) -> None:
    scope = with_a_run(open_page, replayed, recorded)
    for view in views(scope):
        wanted: dict[str, str] = dict(scope.page.evaluate(REACHABLE))
        assert len(wanted) > 30
        scope.page.locator("h1").click()
        reached = set()
        for _ in range(3 * len(wanted)):
            scope.page.keyboard.press("Tab")
            here = scope.page.evaluate(HERE)
            reached.add(here)
            if set(wanted) <= reached:
                break
        missed = [html for key, html in wanted.items() if key not in reached]
        assert missed == [], f"in view {view}"


def sentence(scope: Scope, node: int | str) -> str:
    return scope.page.locator(f"#treeitem-{node}").text_content() or ""


def test_the_tree_says_token_verdict_and_numbers(open_page: OpenPage, replayed: str, recorded: Path) -> None:
    scope = open_page(replayed)
    scope.ready()
    scope.open(recorded)
    scope.shows(scope.store("store.run.newest"))
    tree = scope.page.get_by_role("tree")
    expect(tree).to_have_attribute("data-testid", "tree")
    nodes: list[dict[str, Any]] = scope.store("store.view.nodes")
    words = {"untried": "never tried", "uncounted": "not counted"}
    items = tree.get_by_role("treeitem")
    expect(items).to_have_count(len(nodes) + 1)  # and the bonus
    for node in nodes[1:]:
        item = scope.page.locator(f"#treeitem-{node['n']}")
        assert item.get_attribute("aria-level") == str(node["depth"] + 1)
        said = sentence(scope, node["n"])
        assert said.startswith(f"node {node['n']} ‘")
        assert f", {words.get(node['verdict'], node['verdict'])}, " in said
        draft = math.exp(node["draftLogProb"])
        if 0.0005 < draft < 0.9995:
            assert f"draft {draft:.3f}" in said
        assert f"log-weight {node['logWeight']:.3f}" in said
        assert ("target not computed" in said) == (node["prob"] is None)
    assert sentence(scope, "bonus").startswith("bonus ‘")
    tree.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        scope.page.keyboard.press(key)
    selected = scope.store("store.selected")
    expect(tree).to_have_attribute("aria-activedescendant", f"treeitem-{selected}")
    expect(scope.page.locator(f"#treeitem-{selected}")).to_have_attribute("aria-selected", "true")
    scope.page.locator("h1").click()
    scope.page.keyboard.press("Home")
    scope.shows(0)
    expect(scope.page.locator("#treeitem-0")).to_contain_text("root")
    count = scope.store("store.view.nodes.length + (store.view.bonus ? 1 : 0)")
    expect(items).to_have_count(count)  # in step with the drawing


def test_nothing_moves_for_those_who_asked_for_stillness(
    open_page: OpenPage, replayed: str, recorded: Path
) -> None:
    scope = with_a_run(open_page, replayed, recorded)
    moving = "document.getAnimations().filter((one) => one.playState === 'running').length"
    for _ in views(scope):
        assert scope.page.evaluate(moving) == 0
    durations = scope.page.evaluate(
        "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one).transitionDuration)"
    )
    assert set(durations) <= {"0s", "0ms"}
