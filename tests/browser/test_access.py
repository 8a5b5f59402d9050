"""The page for everyone: axe-core with a run loaded, in both themes and widths; nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Request, expect
from scope import OpenPage, Scope
from serving import ServerProcess

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def findings(scope: Scope) -> list[str]:
    """Serious and critical findings: rule, and the first elements it is about."""
    scope.page.evaluate(AXE)
    result = scope.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{found['id']}: {[(node['html'], node['failureSummary']) for node in found['nodes'][:3]]}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 800])
def test_axe_finds_nothing_serious(
    open_page: OpenPage, model_server: ServerProcess, recorded: Path, theme: str, width: int
) -> None:
    scope = open_page(model_server.url, width=width, theme=theme)
    scope.ready()
    assert scope.page.evaluate("document.documentElement.dataset.theme") == theme
    if width == 1440:
        assert findings(scope) == []
    scope.open(recorded)
    scope.shows(scope.store("store.run.newest"))
    assert findings(scope) == []
    assert scope.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    if width == 1440:
        assert scope.page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_dialogs(
    open_page: OpenPage, model_server: ServerProcess, recorded: Path, theme: str
) -> None:
    scope = open_page(model_server.url, theme=theme)
    scope.open(recorded)
    for name in ("paste", "runs", "help"):
        scope.handle(name).click()
        expect(scope.handle(f"{name}-dialog")).to_be_visible()
        if name == "runs":
            expect(scope.handle("runlist").locator("[data-run]").first).to_be_visible()
        assert findings(scope) == []
        scope.page.keyboard.press("Escape")


def test_the_theme_is_switched_and_remembered(live: Scope, recorded: Path) -> None:
    live.open(recorded)
    live.shows(live.store("store.run.newest"))
    label = live.page.locator('[data-testid="tree"] svg text').first
    before = label.evaluate("(text) => getComputedStyle(text).fill")
    live.handle("theme").click()
    expect(live.page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(label).not_to_have_css("fill", before)
    live.page.reload()
    assert live.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_comes_from_this_server(open_page: OpenPage, model_server: ServerProcess) -> None:
    scope = open_page(model_server.url)
    asked: list[Request] = []
    scope.page.on("request", lambda request: asked.append(request))
    scope.page.reload()
    scope.ready()
    own = (model_server.url, "data:", "blob:")
    assert [request.url for request in asked if not request.url.startswith(own)] == []
    assert any("plotly" in request.url for request in asked)


def test_no_script_builds_markup_from_text() -> None:
    static = Path(__file__).parents[2] / "static"
    scripts = sorted(static.rglob("*.js"))
    assert len(scripts) > 20
    for script in scripts:
        source = script.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in source, f"{script.name} uses {word}"
