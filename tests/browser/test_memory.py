"""A page that watches for hours: one plot, a bounded heap, and a hidden page that catches up (CASES 41)."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope

MIB = 1024 * 1024
MOST_GROWTH = 50 * MIB


def heap(scope: Scope) -> int:
    """Bytes in use after a collection."""
    session = scope.page.context.new_cdp_session(scope.page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


def watch(open_page: OpenPage, recorded: Path, data: Path, updates: int, per_second: float) -> None:
    with ReplayedServer(recorded, data, steps=updates, seconds=1 / per_second) as url:
        scope = open_page(url)
        scope.ready()
        scope.run("Again and again", pace=per_second)
        scope.wait_step(20)
        before = heap(scope)
        scope.until("store.run.state === 'finished'", patience_s=2 * updates / per_second + 30)
        scope.shows(updates - 1)
        growth = heap(scope) - before
        assert growth < MOST_GROWTH, f"{growth / MIB:.1f} MiB more after {updates} updates"
        assert scope.page.locator('[data-testid="tree"] .js-plotly-plot').count() == 1
        assert scope.page.locator(".js-plotly-plot").count() == 2  # the tree, the scrubber
        tokens = scope.store("store.run.sums.committed")
        expect(scope.page.locator('[data-testid="text"] [data-step]')).to_have_count(tokens)
        assert scope.store("store.run.outlines.length") == updates
        scope.page.locator("#first").click()
        scope.shows(0)  # its step was let go of, and fetched again


def test_three_hundred_live_updates(open_page: OpenPage, recorded: Path, tmp_path: Path) -> None:
    watch(open_page, recorded, tmp_path, updates=300, per_second=40)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_five_thousand_live_updates(open_page: OpenPage, recorded: Path, tmp_path: Path) -> None:
    watch(open_page, recorded, tmp_path, updates=5000, per_second=20)


def test_a_hidden_page_catches_up_when_it_is_shown(
    open_page: OpenPage, recorded: Path, tmp_path: Path
) -> None:
    """Browsers hold the animation frames of a hidden page: here they are held by hand."""
    with ReplayedServer(recorded, tmp_path, steps=120, seconds=0.005) as url:
        scope = open_page(url)
        scope.ready()
        scope.page.evaluate(
            "() => { window.held = []; window.shown = window.requestAnimationFrame;"
            " window.requestAnimationFrame = (call) => held.push(call); }"
        )
        scope.run("While nobody looks")
        scope.until("store.run.state === 'finished'")
        assert scope.handle("tree").get_attribute("data-step") is None
        assert scope.page.locator('[data-testid="text"] [data-step]').count() == 0
        scope.page.evaluate(
            "() => { window.requestAnimationFrame = window.shown; held.forEach((call) => call()); }"
        )
        scope.shows(119)
        tokens = scope.store("store.run.sums.committed")
        expect(scope.page.locator('[data-testid="text"] [data-step]')).to_have_count(tokens)
        assert scope.store("store.run.outlines.filter(Boolean).length") == 120
