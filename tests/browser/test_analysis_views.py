"""What if by budget, and where acceptance comes from: the page's numbers are the library's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope
from test_access import findings

from app.analysis import Analysis, analyse
from ddtree.trace import Step
from ddtree.trace_file import load_trace
from ddtree.whatif import with_budget


@pytest.fixture
def replayed(recorded: Path, tmp_path: Path) -> Iterator[str]:
    """A server whose runs are the recorded steps again, six of them."""
    with ReplayedServer(recorded, tmp_path, steps=6, seconds=0.02) as url:
        yield url


@pytest.fixture
def steps(recorded: Path) -> list[Step]:
    return load_trace(recorded.read_bytes()).steps


@pytest.fixture
def opened(open_page: OpenPage, replayed: str, recorded: Path) -> Scope:
    """The recorded run (temperature 1), opened as a stored one."""
    scope = open_page(replayed)
    scope.ready()
    scope.open(recorded)
    return scope


def go_to(scope: Scope, index: int) -> None:
    scope.page.evaluate("async (index) => (await import('/static/core/store.js')).goTo(index)", arg=index)
    scope.shows(index)


def show(scope: Scope, tab: str, part: str) -> None:
    scope.handle(f"tab-{tab}").click()
    expect(scope.handle("analysis")).to_have_attribute("data-range", part)


def cells(scope: Scope, table: str) -> list[list[str]]:
    rows = scope.handle(table).locator("tbody tr")
    return [row.locator("th, td").all_text_contents() for row in rows.all()]


def plotted(scope: Scope, chart: str) -> list[dict[str, Any]]:
    """The traces that Plotly holds."""
    found = scope.page.evaluate(
        "(id) => JSON.stringify(document.getElementById(id).data)", arg=f"chart-{chart}"
    )
    traces: list[dict[str, Any]] = json.loads(found)
    return traces


def test_moving_the_marker_cuts_the_step_as_the_library_does(opened: Scope, steps: list[Step]) -> None:
    step = max(steps, key=lambda step: step.accept.accept_token_num if step.accept else 0)
    assert step.accept is not None and step.tree is not None and step.accept.accept_token_num >= 2
    go_to(opened, step.index)
    marker, nodes = opened.handle("whatif"), len(step.tree.token_ids)
    expect(marker).to_have_value(str(nodes))
    expect(opened.handle("whatif-says")).to_contain_text(f"as run: {step.accept.accept_token_num} accepted")
    before = len(opened.labels)
    for budget in range(nodes):
        marker.fill(str(budget))
        found = with_budget(step, budget)
        expect(opened.page.locator(".whatif")).to_have_attribute("data-emitted", str(found.emitted))
        says = opened.handle("whatif-says")
        expect(says).to_contain_text(f"{found.accepted_drafts} accepted")
        if found.emitted == len(found.path):
            drawn = "another draw" if found.bonus_token_id is None else "then the bonus"
            expect(says).to_contain_text(drawn)
        dimmed = opened.page.locator('[data-testid="nodes"] tr[data-beyond]')
        expect(dimmed).to_have_count(nodes - budget)
    assert len(opened.labels) == before  # dimmed, not gone
    marker.press("End")
    expect(opened.page.locator("[data-beyond]")).to_have_count(0)


def test_the_marker_moves_by_keys_and_stays_from_step_to_step(opened: Scope, steps: list[Step]) -> None:
    go_to(opened, 1)
    opened.handle("whatif").fill("3")
    opened.handle("whatif").press("ArrowLeft")
    opened.until("store.whatif === 2")
    assert opened.store("store.at") == 1
    go_to(opened, 2)
    expect(opened.handle("whatif")).to_have_value("2")


def test_what_if_over_a_run_shows_the_librarys_curve(opened: Scope, steps: list[Step]) -> None:
    show(opened, "whatif", f"0-{len(steps) - 1}")
    whatif = analyse("", steps, 0, len(steps) - 1).whatif
    assert cells(opened, "whatif-table") == [
        [
            str(point.budget),
            f"{point.emitted:.3f}",
            f"{point.accepted:.3f}",
            str(point.bonus_unknown),
            f"{point.tokens_per_second:.1f}",
        ]
        for point in whatif.points
    ]
    assert plotted(opened, "emitted")[0]["y"] == [point.emitted for point in whatif.points]
    assert plotted(opened, "speed")[0]["y"] == [point.tokens_per_second for point in whatif.points]
    assert [row[1:3] for row in cells(opened, "times-table")] == [
        [str(time.rows), str(time.steps)] for time in whatif.times
    ]
    expect(opened.handle("whatif-best")).to_have_text("No best")  # one budget was measured
    note = opened.handle("whatif-note")
    expect(note).to_contain_text(f"An estimate: the same {whatif.steps} contexts")
    expect(note).to_contain_text("Only budget 15 was measured")
    opened.handle("whatif-run").fill("7")
    said = f"{whatif.points[7].emitted:.2f} tok/step, {whatif.points[7].tokens_per_second:.1f} tok/s"
    expect(opened.handle("whatif-run-says")).to_contain_text(said)
    opened.handle("tab-step").click()
    expect(opened.handle("whatif")).to_have_value("7")


def test_a_budget_is_measured_beside_the_estimate(opened: Scope) -> None:
    run_id = opened.store("store.run.id")
    opened.handle("tab-whatif").click()
    opened.handle("whatif-run").fill("7")
    opened.handle("measure").click()
    expect(opened.handle("whatif-run-says")).to_contain_text("; measured ")
    assert opened.store("store.run.id") == run_id  # the page stays with the run it estimates
    (measured,) = opened.page.evaluate(
        "async (id) => (await import('/static/parts/measure.js')).measured(id)", arg=run_id
    )
    stored = opened.page.evaluate(
        "async (id) => (await fetch(`/api/runs/${id}`)).json()", arg=measured["run_id"]
    )
    settings = stored["head"]["settings"]
    assert (settings["budget"], settings["seed"], settings["temperature"]) == (7, 11, 1)
    assert stored["prompt"] == opened.store("store.run.head.prompt.text")
    assert (measured["budget"], measured["tau"]) == (7, stored["summary"]["tau"])
    assert plotted(opened, "emitted")[1]["y"] == [measured["tau"]]
    expect(opened.handle("measure")).to_have_text("Measure budget 7")


@pytest.fixture
def analysis(steps: list[Step]) -> Analysis:
    return analyse("", steps, 0, len(steps) - 1)


def test_acceptance_shows_the_librarys_figures(opened: Scope, analysis: Analysis) -> None:
    show(opened, "acceptance", f"{analysis.first}-{analysis.last}")
    found = analysis.acceptance
    reached, every = plotted(opened, "depth")
    assert reached["y"] == [depth.conditional for depth in found.depths]
    assert every["y"] == [depth.unconditional for depth in found.depths]
    for name in ("conditional", "accepted", "reached", "proposed"):
        opened.handle("heat").select_option(name)
        opened.page.wait_for_timeout(150)
        heat, numbers = plotted(opened, "heat")
        width = max(map(len, found.cells))
        assert heat["z"] == [
            [
                getattr(row[rank], name) if rank < len(row) and row[rank].proposed else None
                for rank in range(min(width, 16))
            ]
            for row in found.cells
        ]
        shown = [value for row in heat["z"] for value in row if value is not None]
        assert [float(text) for text in numbers["text"]] == [round(value, 2) for value in shown]
    assert plotted(opened, "rank")[0]["y"] == [*found.ranks.counts, found.ranks.beyond]
    (bins,) = plotted(opened, "calibration")
    full = [each for each in found.calibration if each.nodes]
    assert bins["y"] == [each.rate for each in full]
    assert all(text in ("", str(each.nodes)) for text, each in zip(bins["text"], full, strict=True))
    assert bins["text"][-1] == str(full[-1].nodes)  # nothing stands beside the last
    assert bins["error_y"]["array"] == pytest.approx(
        [each.interval[1] - each.rate for each in full if each.interval and each.rate is not None]
    )
    mismatches = sum(found.ranks.counts) + found.ranks.beyond
    expect(opened.handle("acceptance-note")).to_contain_text(f"{mismatches} of {found.steps} steps")
    words = opened.page.locator("#chart-depth").get_attribute("aria-label") or ""
    assert words.startswith(f"depth 1: {found.depths[0].unconditional:.2f} of all steps")


def test_both_views_follow_the_scrubber_and_a_range(opened: Scope, steps: list[Step]) -> None:
    go_to(opened, 3)
    opened.handle("tab-acceptance").click()
    opened.handle("scope-step").check(force=True)
    expect(opened.handle("analysis")).to_have_attribute("data-range", "3-3")
    opened.handle("scrubber").press("ArrowRight")
    expect(opened.handle("analysis")).to_have_attribute("data-range", "4-4")
    expect(opened.handle("analysis-facts")).to_have_text("step 4: 1 step counted")
    opened.handle("scope-range").check(force=True)
    opened.handle("range-from").fill("2")
    opened.handle("range-to").fill("6")
    opened.handle("range-to").press("Enter")
    expect(opened.handle("analysis")).to_have_attribute("data-range", "2-6")
    found = analyse("", steps, 2, 6).acceptance
    assert plotted(opened, "depth")[1]["y"] == [depth.unconditional for depth in found.depths]


def test_the_tabs_are_reached_by_keys_and_say_when_there_is_nothing(
    open_page: OpenPage, replayed: str
) -> None:
    scope = open_page(replayed, width=800)
    scope.ready()
    scope.handle("tab-step").focus()
    scope.page.keyboard.press("ArrowRight")
    expect(scope.handle("tab-whatif")).to_be_focused()
    expect(scope.handle("tab-whatif")).to_have_attribute("aria-selected", "true")
    expect(scope.handle("analysis-blank")).to_contain_text("No steps yet")
    assert scope.page.evaluate("document.documentElement.scrollWidth") <= 800
    scope.page.keyboard.press("ArrowLeft")
    expect(scope.handle("analysis")).to_be_hidden()
    expect(scope.handle("tree")).to_be_visible()


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 800)])
def test_axe_finds_nothing_serious_in_either_view(
    open_page: OpenPage, replayed: str, recorded: Path, theme: str, width: int
) -> None:
    scope = open_page(replayed, width=width, theme=theme)
    scope.ready()
    scope.open(recorded)
    scope.handle("whatif").fill("3")
    for tab in ("step", "whatif", "acceptance"):
        scope.handle(f"tab-{tab}").click()
        if tab != "step":
            expect(scope.handle(f"{tab}-note")).to_be_visible()
        assert findings(scope) == []
        assert scope.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        if width == 1440:
            assert scope.page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0


def test_a_measurement_can_be_stopped(open_page: OpenPage, recorded: Path, tmp_path: Path) -> None:
    with ReplayedServer(recorded, tmp_path, steps=1000, seconds=0.05) as url:
        scope = open_page(url)
        scope.ready()
        scope.open(recorded)
        scope.handle("tab-whatif").click()
        scope.handle("measure").click()
        expect(scope.handle("measure")).to_contain_text("step 3")
        scope.handle("measure-stop").click()
        expect(scope.handle("measure")).to_contain_text("Measure budget")
        expect(scope.handle("measure-stop")).to_be_hidden()
        assert len(plotted(scope, "emitted")[1]["x"]) == 0
