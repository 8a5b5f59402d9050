"""Budget "auto" on the page: its switch, the number each step used, what the analysis says of such a run."""

from __future__ import annotations

from playwright.sync_api import expect
from scope import OpenPage, Scope
from serving import ServerProcess
from test_access import findings

NEWEST = "store.run.outlines.at(-1)"


def test_the_switch_takes_over_in_mid_run_and_gives_back(live: Scope) -> None:
    switch, field = live.handle("budget-auto"), live.handle("budget")
    live.run("Tell me about the sea.", max_new_tokens=200, pace=8, budget=7)
    live.wait_step(1)
    switch.focus()
    live.page.keyboard.press("Enter")
    expect(switch).to_have_attribute("aria-pressed", "true")
    expect(field).to_have_value("")
    expect(field).to_have_attribute("placeholder", "auto")
    live.until(f"store.run.settings.budget === 'auto' && {NEWEST}.settings.budget === 'auto'")
    expect(live.handle("scrubber")).to_contain_text("budget 7 → auto")
    expect(live.handle("auto-fact")).to_have_text(", auto")
    seen = live.store("[store.view.step.auto.ceiling, store.view.step.settings.budget, store.view.size]")
    assert seen[0] >= seen[1] >= seen[2] >= 0

    live.handle("budget-slider").fill("3")
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(field).to_have_value("3")
    live.until(f"{NEWEST}.settings.budget === 3")
    expect(live.handle("auto-fact")).to_have_count(0)
    switch.click()
    live.until(f"{NEWEST}.settings.budget === 'auto'")
    switch.click()  # the slider's number comes back
    expect(field).to_have_value("3")
    live.until(f"{NEWEST}.settings.budget === 3")
    live.handle("stop").click()
    live.finished()


def test_a_run_on_auto_shows_every_steps_number_and_can_be_analysed(
    open_page: OpenPage, model_server: ServerProcess
) -> None:
    scope = open_page(model_server.url)
    scope.ready()
    scope.handle("budget-auto").click()
    scope.run("Name three rivers and where they flow.", seed=2, max_new_tokens=40)
    scope.finished()
    assert scope.store("store.run.head.settings.budget") == "auto"
    scope.shows(scope.store("store.run.newest"))
    used = scope.store("store.view.step.settings.budget")
    assert type(used) is int
    expect(scope.page.locator("#treefacts")).to_contain_text(f"{used} nodes, auto")
    assert scope.store("store.run.outlines.every((outline) => outline.changes.length === 0)")
    assert findings(scope) == []

    scope.handle("tab-whatif").click()
    expect(scope.handle("whatif-note")).to_contain_text("chose the budget (auto)")
    expect(scope.handle("whatif-table").locator("tbody tr").first).to_be_visible()
