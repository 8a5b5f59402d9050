"""What stands where there is no tree: an invitation, loading, a model that failed to load, a failed step."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope

from app.engine import Progress


def test_an_example_of_the_invitation_is_run(live: Scope) -> None:
    blank = live.page.locator("#blank")
    expect(blank).to_contain_text("Type a prompt and run it")
    live.set(max_new_tokens=4)
    blank.get_by_role("button").first.click()
    live.finished()
    expect(blank).to_be_hidden()
    assert "lighthouse" in live.handle("prompt").input_value()


def test_an_empty_prompt_is_refused_at_the_field(live: Scope) -> None:
    live.handle("run").click()
    expect(live.page.locator("#e-prompt")).to_contain_text("Type a prompt")
    expect(live.handle("prompt")).to_be_focused()


def test_loading_says_how_far_it_is(open_page: OpenPage, recorded: Path, tmp_path: Path) -> None:
    go_on = threading.Event()

    def loading(progress: Progress) -> None:
        progress("converting <b>the</b> weights", 0.4)
        assert go_on.wait(30)

    with ReplayedServer(recorded, tmp_path, steps=3, seconds=0, loading=loading) as url:
        scope = open_page(url)
        expect(scope.page.locator("#blank")).to_contain_text("converting <b>the</b> weights")
        bar = scope.page.get_by_role("progressbar", name="Progress")
        expect(bar).to_have_attribute("aria-valuenow", "40")
        expect(scope.handle("run")).to_be_disabled()
        go_on.set()
        scope.ready()
        expect(bar).to_be_hidden()


def test_a_model_that_cannot_be_loaded_leaves_the_rest_usable(
    open_page: OpenPage, recorded: Path, tmp_path: Path
) -> None:
    def loading(progress: Progress) -> None:
        raise ValueError("there is no folder /no/such/model")

    with ReplayedServer(recorded, tmp_path, steps=3, seconds=0, loading=loading) as url:
        scope = open_page(url)
        expect(scope.page.locator("#blank")).to_contain_text("there is no folder /no/such/model")
        expect(scope.handle("run")).to_be_disabled()
        scope.open(recorded)
        scope.shows(scope.store("store.run.newest"))


def test_a_failed_step_says_where_it_failed(live: Scope, recorded: Path, tmp_path: Path) -> None:
    trace = json.loads(recorded.read_bytes())
    failed = dict.fromkeys(trace["steps"][-1])
    failed |= {name: trace["steps"][1][name] for name in ("index", "root", "settings")}
    failed["error"] = {"code": "draft_fault", "message": "row 1 has <NaN>", "depth": 2}
    trace["steps"][1:] = [failed]
    trace["summary"] |= {"finish_reason": "error", "steps": 1}
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    live.open(path)
    expect(live.page.locator("#blank")).to_contain_text("Step 1 failed at depth 2")
    expect(live.page.locator("#blank")).to_contain_text("row 1 has <NaN>")
    expect(live.handle("state")).to_contain_text("failed")
    live.page.locator("#prev").click()
    live.shows(0)
    expect(live.page.locator("#blank")).to_be_hidden()
