"""Traces as files: out by the button, in by the button and by drop; a broken one changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect
from scope import Scope

from ddtree.replay import check_trace
from ddtree.trace_file import load_trace


def test_an_exported_run_holds_and_comes_back_byte_for_byte(
    live: Scope, recorded: Path, tmp_path: Path
) -> None:
    assert check_trace(load_trace(recorded.read_bytes())) == []
    live.open(recorded)
    again = tmp_path / "again.json"
    live.export(again)
    assert again.read_bytes() == recorded.read_bytes()
    expect(live.page.locator("#measured")).to_have_text("recorded")
    expect(live.handle("state")).to_contain_text("Finished")


def test_a_dropped_trace_is_opened(live: Scope, recorded: Path) -> None:
    live.drop(recorded)
    steps = len(json.loads(recorded.read_bytes())["steps"])
    live.wait_step(steps - 1)
    live.shows(steps - 1)
    expect(live.page.locator("#dropzone")).to_be_hidden()


BROKEN = {
    "empty.json": b"",
    "null.json": b"null",
    "list.json": b"[]",
    "proto.json": b'{"__proto__": {}}',
    "nan.json": b'{"format": "ddtree-trace", "version": NaN}',
    "utf16.json": '{"format": "ddtree-trace"}'.encode("utf-16"),
    "<b>name.json": b"5",
}


def test_a_broken_import_says_why_and_leaves_the_view_untouched(
    live: Scope, recorded: Path, tmp_path: Path
) -> None:
    live.allowed.append("/api/traces")  # the browser writes refused requests to the console
    live.open(recorded)
    live.shows(live.store("store.run.newest"))
    before = live.store("[store.run.id, store.at, document.querySelector('#tree .canvas').textContent]")
    for name, content in BROKEN.items():
        path = tmp_path / name
        path.write_bytes(content)
        live.choose(path)
        expect(live.handle("error")).to_contain_text(f"{name} was not imported:")
        assert (
            live.store("[store.run.id, store.at, document.querySelector('#tree .canvas').textContent]")
            == before
        )
        live.handle("error").get_by_role("button").click()


@pytest.fixture
def broken_path(recorded: Path, tmp_path: Path) -> Path:
    trace = json.loads(recorded.read_bytes())
    trace["steps"][0]["tree"]["parents"][1:3] = [2, 1]
    path = tmp_path / "cycle.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    return path


def test_the_reason_names_the_place(live: Scope, broken_path: Path) -> None:
    live.allowed.append("/api/traces")
    live.choose(broken_path)
    expect(live.handle("error")).to_contain_text("steps[0].tree.parents")
    assert live.store("store.run") is None


def test_stored_runs_are_opened_again(live: Scope, recorded: Path) -> None:
    live.open(recorded)
    live.page.goto(live.page.url.split("#")[0])
    live.ready()
    live.handle("runs").click()
    first = live.handle("runlist").locator("tr").first
    expect(first).to_contain_text("Name three rivers")
    first.get_by_role("button").first.click()
    expect(live.handle("runs-dialog")).to_be_hidden()
    live.wait_step(0)
    expect(live.page.locator("#treefacts")).to_contain_text("nodes")
    live.page.reload()
    live.wait_step(0)  # the address names the run
