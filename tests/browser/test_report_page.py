"""A run's report opens from disk with the network off and shows what the library says of the trace; figures
are saved as images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from replayed import ReplayedServer
from scope import OpenPage, Scope
from test_access import findings

from app.analysis import Analysis, analyse
from app.cli import main
from ddtree.chrome_trace import step_events
from ddtree.trace import Trace
from ddtree.trace_file import load_trace


@pytest.fixture
def trace(recorded: Path) -> Trace:
    return load_trace(recorded.read_bytes())


@pytest.fixture
def found(trace: Trace) -> Analysis:
    return analyse("run", trace.steps, 0, len(trace.steps) - 1)


@pytest.fixture
def opened(chromium: Browser, recorded: Path, tmp_path: Path) -> Iterator[Page]:
    """The report in a page without a network, which must not say a word."""
    file = tmp_path / "report.html"
    assert main(["report", str(recorded), "-o", str(file)]) == 0
    context = chromium.new_context(offline=True, color_scheme="light", reduced_motion="reduce")
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(file.as_uri())
    page.locator("[data-testid=tree] .main-svg").first.wait_for()
    yield page
    assert said == []
    context.close()


def cells(page: Page, column: int) -> list[str]:
    return page.locator(f"[data-testid=nodes] tbody tr > :nth-child({column})").all_text_contents()


def test_every_step_shows_the_traces_numbers(opened: Page, trace: Trace) -> None:
    opened.locator("h1").click()
    opened.keyboard.press("Home")
    for step in trace.steps[:6]:
        tree = opened.get_by_test_id("tree")
        expect(tree).to_have_attribute("data-step", str(step.index))
        assert step.tree is not None and step.retrieve is not None and step.accept is not None
        assert cells(opened, 3)[1:] == [str(i) for i in step.tree.token_ids]
        assert cells(opened, 4) == [str(i) for i in step.tree.parents]
        assert cells(opened, 7)[1:] == [f"{weight:.3f}" for weight in step.tree.log_weights]
        assert cells(opened, 10) == [str(i) for i in step.retrieve.retrieve_next_token]
        assert cells(opened, 11) == [str(i) for i in step.retrieve.retrieve_next_sibling]
        accepted = opened.locator("[data-testid=nodes] tbody tr", has_text="accepted")
        assert accepted.count() == step.accept.accept_token_num
        opened.keyboard.press("ArrowRight")


def test_text_and_figures_are_the_summarys(opened: Page, trace: Trace) -> None:
    assert trace.summary is not None and trace.summary.tau is not None
    tiles = opened.get_by_test_id("tiles")
    expect(tiles).to_contain_text(f"{trace.summary.tau:.2f}")
    expect(tiles).to_contain_text(f"{trace.summary.tokens_per_second:.1f}")
    spans = opened.locator("[data-testid=text] [data-step]").all_text_contents()
    texts = [text for step in trace.steps if step.committed for text in step.committed.texts]
    assert [text.replace("↵\n", "\n") for text in spans] == texts
    head = opened.get_by_test_id("reportline")
    expect(head).to_contain_text(trace.prompt.text)
    expect(head).to_contain_text(f"temperature{trace.settings.temperature:g}")


def test_both_analyses_are_the_librarys(opened: Page, found: Analysis) -> None:
    opened.get_by_test_id("tab-whatif").click()
    rows = opened.get_by_test_id("whatif-table").locator("tbody tr")
    expect(rows).to_have_count(len(found.whatif.points))
    for row, point in zip(rows.all(), found.whatif.points, strict=True):
        shown = row.locator("th, td").all_text_contents()
        assert shown[:3] == [str(point.budget), f"{point.emitted:.3f}", f"{point.accepted:.3f}"]
    opened.get_by_test_id("tab-acceptance").click()
    opened.locator("#chart-depth .main-svg").first.wait_for()
    data = json.loads(opened.evaluate("JSON.stringify(document.getElementById('chart-depth').data)"))
    curves = {curve["name"]: curve["y"] for curve in data}
    depths = found.acceptance.depths
    assert curves["of all steps"] == pytest.approx([depth.unconditional for depth in depths])


def test_a_node_is_pointed_at_a_what_if_is_moved_and_a_step_has_an_address(
    opened: Page, trace: Trace
) -> None:
    opened.locator('[data-testid="text"] [data-step="2"]').first.click()
    expect(opened.get_by_test_id("tree")).to_have_attribute("data-step", "2")
    opened.locator('[data-testid="nodes"] tr[data-node="1"]').click()
    expect(opened.locator("#whyfacts")).not_to_be_empty()
    opened.get_by_test_id("whatif").fill("0")
    expect(opened.get_by_test_id("whatif-says")).to_contain_text("0 accepted")
    opened.wait_for_timeout(300)
    assert "step=2" in opened.url and "whatif=0" in opened.url
    opened.reload()
    expect(opened.get_by_test_id("tree")).to_have_attribute("data-step", "2")


def test_the_trace_comes_out_again_and_nothing_asks_for_a_server(
    opened: Page, trace: Trace, tmp_path: Path
) -> None:
    with opened.expect_download() as download:
        opened.get_by_test_id("export").click()
    download.value.save_as(tmp_path / "out.json")
    assert load_trace((tmp_path / "out.json").read_bytes()) == trace
    for name in ("run", "fork", "import", "runs", "perfetto", "measure", "lossless-open", "tab-race"):
        expect(opened.get_by_test_id(name)).to_be_hidden()


# ---- figures and stages as files, on the page ----


@pytest.fixture
def scope(open_page: OpenPage, recorded: Path, tmp_path: Path) -> Iterator[Scope]:
    with ReplayedServer(recorded, tmp_path, steps=6, seconds=0.02) as url:
        scope = open_page(url)
        scope.ready()
        scope.open(recorded)
        yield scope


def saved(scope: Scope, name: str) -> tuple[str, bytes]:
    with scope.page.expect_download() as download:
        scope.handle(name).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_the_whole_tree_and_a_chart_are_saved_as_images(scope: Scope) -> None:
    name, svg = saved(scope, "image-tree-svg")
    at, run_id = scope.store("store.at"), scope.store("store.run.id")
    assert name == f"{run_id}-step-{at}-tree.svg" and svg.startswith(b"<svg")
    for node in scope.store("store.view.nodes.map((node) => node.n)"):
        assert f">{node} ".encode() in svg or f">{node}<".encode() in svg
    name, png = saved(scope, "image-tree-png")
    assert name.endswith("-tree.png") and png.startswith(b"\x89PNG")
    scope.handle("tab-acceptance").click()
    scope.page.locator("#chart-depth .main-svg").first.wait_for()
    _, chart = saved(scope, "image-depth-svg")
    assert b"of reached" in chart
    assert findings(scope) == []


def test_the_stages_are_saved_for_perfetto(scope: Scope, trace: Trace) -> None:
    name, text = saved(scope, "perfetto")
    found: dict[str, Any] = json.loads(text)
    assert name.endswith(".perfetto.json")
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert events == list(step_events(trace.steps))
