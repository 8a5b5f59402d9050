"""A bench's report opens from disk without a network, in either theme, and says nothing in the console."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_fakes import Bench
from playwright.sync_api import Browser, Page

from app.bench import report as reporting

Opened = tuple[Page, list[str]]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bench = Bench(tmp_path, monkeypatch)
    lanes = ("--lane", "autoregressive", "--lane", "ddtree", "--lane", "chain:budget=3", "--lane", "generate")
    assert bench(*lanes, "--repeats", "1", "--temperatures", "0", "1") == 0
    return bench.out / "report.html"


@pytest.fixture
def opened(chromium: Browser) -> Callable[[Path], Opened]:
    def start(file: Path) -> Opened:
        context = chromium.new_context(offline=True, color_scheme="light")
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("[data-testid=tau] .main-svg")
        return page, said

    return start


def test_it_opens_offline_and_draws_every_plot(report: Path, opened: Callable[[Path], Opened]) -> None:
    page, said = opened(report)
    for name in ("rate", "ratio", "unconditional", "conditional", "heatmap", "stages", "tau"):
        assert page.locator(f"[data-testid={name}] .main-svg").count() > 0, name
    rows = page.locator("[data-testid=lanes] tbody th").all_inner_texts()
    assert rows == ["autoregressive", "ddtree", "chain:budget=3", "generate"] * 2
    assert page.locator("[data-testid=lane] option").all_inner_texts() == ["ddtree", "chain:budget=3"]
    lanes = "document.querySelector('[data-testid=rate] .plot').data.map((trace) => trace.y[0])"
    assert page.evaluate(lanes) == ["autoregressive", "ddtree", "chain:budget=3", "generate"]
    depths = "document.querySelector('[data-testid=unconditional] .plot').data[0].y"
    cold = page.evaluate(depths)
    page.locator("[data-testid=temperature]").select_option("1")
    assert page.evaluate(depths) != cold
    assert said == []


def test_it_follows_the_systems_theme(report: Path, opened: Callable[[Path], Opened]) -> None:
    page, said = opened(report)
    colours = """[
        getComputedStyle(document.body).backgroundColor,
        document.querySelector('[data-testid=tau] .plot').layout.font.color,
    ]"""
    light = page.evaluate(colours)
    assert light == ["rgb(244, 245, 246)", "#424a52"]
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert page.evaluate(colours) == ["rgb(14, 17, 20)", "#b9c1c8"]
    assert said == []


def test_names_are_text_and_never_markup(
    report: Path, opened: Callable[[Path], Opened], tmp_path: Path
) -> None:
    """A category and a model name that try to be elements, one of them to end the data's script."""
    found = json.loads((report.parent / "results.json").read_text())
    evil = '</script><b id="evil">x</b>'
    found["plan"]["model"] = evil
    for entry in found["entries"]:
        entry["categories"] = {evil: entry["categories"]["even"]}
    file = tmp_path / "evil.html"
    file.write_text(reporting.report(found))
    page, said = opened(file)
    assert page.locator("#evil").count() == 0
    assert page.locator("h1").inner_text() == f"Bench of {evil}"
    assert evil in page.locator("[data-testid=tau]").inner_text().replace("\n", "")
    assert said == []
