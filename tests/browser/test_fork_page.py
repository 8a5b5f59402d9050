"""Forks on the page: continued from a step, linked both ways, marked where the texts part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope

from ddtree.trace_file import load_trace


@pytest.fixture
def server(recorded: Path, tmp_path: Path) -> Iterator[str]:
    with ReplayedServer(recorded, tmp_path, steps=8, seconds=0.02) as url:
        yield url


@pytest.fixture
def scope(open_page: OpenPage, server: str) -> Scope:
    scope = open_page(server)
    scope.ready()
    expect(scope.handle("fork")).to_be_disabled()
    scope.run("rivers", temperature=1, seed=5)
    scope.finished()
    return scope


def forked(scope: Scope, step: int) -> tuple[str, str]:
    """(parent, fork): go to the step by keys and fork there."""
    parent = scope.store("store.run.id")
    scope.page.locator("h1").click()
    scope.page.keyboard.press("Home")
    for _ in range(step):
        scope.page.keyboard.press("ArrowRight")
    scope.shows(step)
    expect(scope.handle("fork")).to_have_text(f"Fork at step {step}")
    scope.page.keyboard.press("c")
    scope.until(f"store.run.id !== '{parent}'")
    scope.finished()
    return parent, scope.store("store.run.id")


def test_a_fork_is_a_run_linked_to_its_parent(scope: Scope, server: str) -> None:
    scope.set(seed="")
    parent, fork = forked(scope, 3)
    expect(scope.handle("lineage")).to_contain_text("forked at step 3; the first")
    trace = load_trace(httpx.get(f"{server}/api/runs/{fork}/trace").content)
    before = load_trace(httpx.get(f"{server}/api/runs/{parent}/trace").content)
    committed = [i for step in before.steps[:3] if step.committed for i in step.committed.token_ids]
    assert trace.prompt.token_ids == [*before.prompt.token_ids, *committed]
    assert trace.prompt.text == "rivers" and trace.settings.seed == 5  # the parent's, for the form has none
    assert scope.page.locator(".textbox .parts").count() == 0
    scope.handle("lineage").get_by_role("button", name="step 3").click()
    scope.until(f"store.run.id === '{parent}' && store.at === 3")
    expect(scope.handle("lineage")).to_have_text("fork: step 3")
    scope.handle("lineage").get_by_role("button").click()
    scope.until(f"store.run.id === '{fork}'")
    scope.page.go_back()
    scope.until(f"store.run.id === '{parent}' && store.at === 3")
    scope.handle("runs").click()
    row = scope.page.locator(f'tr[data-run="{fork}"]')
    row.get_by_role("button", name="forked at step 3").click()
    scope.until(f"store.run.id === '{parent}' && store.at === 3")


def test_the_first_token_that_differs_is_marked(scope: Scope, server: str) -> None:
    scope.set(temperature=0.5)
    parent, fork = forked(scope, 2)
    expect(scope.page.locator(".textbox .parts")).to_have_count(1)
    found = httpx.get(f"{server}/api/runs/{fork}/lineage").json()
    mine = load_trace(httpx.get(f"{server}/api/runs/{fork}/trace").content)
    theirs = load_trace(httpx.get(f"{server}/api/runs/{parent}/trace").content)
    ours = [i for step in mine.steps if step.committed for i in step.committed.token_ids]
    rest = [i for step in theirs.steps[2:] if step.committed for i in step.committed.token_ids]
    index = next(i for i, (a, b) in enumerate(zip(ours, rest, strict=False)) if a != b)
    assert found["index"] == index
    expect(scope.handle("lineage")).to_have_attribute("data-index", str(index))
    texts = [text for step in mine.steps if step.committed for text in step.committed.texts]
    expect(scope.page.locator(".textbox .parts")).to_have_text(texts[index].strip())
    step = found["theirs"]["step"]
    scope.handle("lineage").get_by_role("button", name=f"token {index}").click()
    scope.until(f"store.run.id === '{parent}' && store.at === {step}")


def test_a_fork_that_the_server_refuses_says_why(scope: Scope, server: str) -> None:
    run_id = scope.store("store.run.id")
    assert httpx.delete(f"{server}/api/runs/{run_id}").status_code == 204
    scope.handle("fork").click()
    expect(scope.handle("error")).to_contain_text(f"there is no run {run_id} to fork")
    expect(scope.handle("fork")).to_be_enabled()
