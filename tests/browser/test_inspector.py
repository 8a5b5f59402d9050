"""The Inspector: what is pasted is drawn, checked, encoded and walked; its numbers are the library's."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from fake_server import FakeServer
from playwright.sync_api import expect
from scope import OpenPage, Scope
from test_access import findings

from ddtree.foreign import recognise, walk_tree

PARENTS, TOKENS = [-1, 0, 1, 2, 0, 1], [10, 20, 30, 11, 21]
WALKED = {
    "parents": PARENTS,
    "token_ids": TOKENS,
    "probs": [0.5, 0.6, 0.9, 0.3, 0.2],
    "uniform_samples": [0.31, 0.75, 0.42, 0.5, 0.11, 0.6],
    "final_coin": 0.4,
}
NEXT_TOKEN, NEXT_SIBLING, COIN, VERDICT = 10, 11, 12, 13


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with FakeServer(FakeEngine(), data=tmp_path) as server:
        yield server.url


@pytest.fixture
def page(open_page: OpenPage, url: str) -> Scope:
    scope = open_page(url)
    scope.ready()
    return scope


def paste(scope: Scope, value: Any) -> None:
    scope.handle("paste").click()
    scope.handle("paste-json").fill(value if isinstance(value, str) else json.dumps(value))
    scope.handle("paste-build").click()
    expect(scope.handle("paste-dialog")).to_be_hidden()
    expect(scope.handle("tab-inspect")).to_have_attribute("aria-selected", "true")


def choose(scope: Scope, name: str, data: bytes) -> None:
    scope.handle("paste").click()
    with scope.page.expect_file_chooser() as chooser:
        scope.handle("paste-choose").click()
    chooser.value.set_files([{"name": name, "mimeType": "application/octet-stream", "buffer": data}])


def verdicts(scope: Scope) -> list[tuple[str, str]]:
    """(node, verdict) of each line of the walk."""
    lines = scope.page.locator('[data-testid="verdicts"] .say[data-node]')
    return [
        (line.get_attribute("data-node") or "", line.locator("em").first.text_content() or "")
        for line in lines.all()
    ]


def expected(coins: list[float], final: float) -> list[tuple[str, str]]:
    walk = walk_tree(recognise(WALKED).trees[0], coins, final)
    lines = [(str(d.node), "accepted" if d.accepted else "rejected") for d in walk.decisions]
    return [*lines, ("bonus", "bonus")]


def test_every_fault_stands_at_its_node(page: Scope) -> None:
    given = {
        "retrieve_next_token": [1, 3, -1, 0, -1, -1],
        "retrieve_next_sibling": [-1, 2, 9, -1, -1, -1],
        "candidates": [5, 7, 7, 8, 9, 3],
        "num_nodes": 5,
    }
    paste(page, given)
    faults = recognise(given).trees[0].faults
    listed = page.handle("faults").locator("li")
    expect(listed).to_have_count(len(faults))
    assert [(li.get_attribute("data-node"), li.get_attribute("data-kind")) for li in listed.all()] == [
        (str(fault.node), fault.kind) for fault in faults
    ]
    for fault in faults:
        expect(page.handle("faults")).to_contain_text(fault.message)
        expect(page.row(fault.node).locator("td.verdict")).to_contain_text(fault.kind.replace("_", " "))
    assert page.row(1).locator(".faulty").count() == 0
    assert page.store("store.pasted.nodes.map((node) => (node.faults ?? []).length)") == [
        sum(fault.node == node for fault in faults) for node in range(6)
    ]
    assert sorted(page.labels) == sorted(
        ["0 root", "1 7", "2 7", "3 8", "4 9", "5 3"]
    )  # lost ones are drawn too
    assert page.store("[...new Set(document.querySelector('#tree .host').data.map((t) => t.uid))]").count(
        "fault"
    )
    listed.last.locator("button").click()
    page.until(f"store.selected === {faults[-1].node}")
    expect(page.page.locator("#why")).to_contain_text(faults[-1].message)
    expect(page.page.locator("#inspect-encoding")).to_be_hidden()


def test_the_encoding_step_by_step(page: Scope) -> None:
    paste(page, {"parents": PARENTS, "token_ids": TOKENS})
    tree = recognise({"parents": PARENTS, "token_ids": TOKENS}).trees[0]
    page.handle("encode-show").click()
    page.shows_cells(NEXT_TOKEN, [-1] * 6)
    page.shows_cells(NEXT_SIBLING, [-1] * 6)
    arrays = {"retrieve_next_token": ["-1"] * 6, "retrieve_next_sibling": ["-1"] * 6}
    for number, step in enumerate(tree.encoding, 1):
        page.handle("encode-next").click()
        arrays[step.array][step.at] = str(step.node)
        expect(page.handle("encode")).to_have_value(str(number))
        name = step.array.removeprefix("retrieve_")
        expect(page.handle("encode-says")).to_contain_text(f"{name}[{step.at}] = {step.node}")
        expect(page.page.locator("#pointers g path")).to_have_count(number)
        page.shows_cells(NEXT_TOKEN, arrays["retrieve_next_token"])
        page.shows_cells(NEXT_SIBLING, arrays["retrieve_next_sibling"])
        expect(page.page.locator('[data-testid="nodes"] tr[data-beyond]')).to_have_count(5 - step.node)
    page.shows_cells(NEXT_TOKEN, tree.next_token)
    assert (
        page.page.locator("#pointers .fresh").evaluate("(p) => getComputedStyle(p).animationName") == "none"
    )
    page.handle("encode-prev").click()
    expect(page.handle("encode")).to_have_value("4")
    page.handle("encode").press("Home")
    expect(page.page.locator("#pointers g path")).to_have_count(0)
    page.handle("encode-play").click()
    expect(page.handle("encode")).to_have_value("2")
    page.handle("encode-show").click()
    page.shows_cells(NEXT_SIBLING, tree.next_sibling)


def test_a_coin_that_is_moved_moves_the_path(page: Scope) -> None:
    paste(page, WALKED)
    coins, final = list(WALKED["uniform_samples"]), 0.4  # type: ignore[call-overload]
    expect(page.handle("coin-0")).to_have_attribute("aria-valuenow", "0.3100")
    assert verdicts(page) == expected(coins, final)
    pin = page.handle("coin-0")
    track = pin.locator("..").bounding_box()
    box = pin.bounding_box()
    assert track is not None and box is not None
    page.page.mouse.move(box["x"], box["y"] + box["height"] / 2)
    page.page.mouse.down()
    page.page.mouse.move(track["x"] + 0.7 * track["width"], box["y"], steps=8)
    page.page.mouse.up()
    page.until("store.pasted.path.join() === '0,4'")
    coin = page.store("store.pasted.nodes[0].coin")
    assert abs(coin - 0.7) < 0.01
    assert verdicts(page) == expected([coin, *coins[1:]], final)
    page.handle("coin-0").press("End")
    page.until("store.pasted.path.join() === '0'")
    expect(page.handle("coin-0")).to_be_focused()  # the walk was drawn anew
    page.handle("coin-0").press("ArrowLeft")
    assert verdicts(page) == expected([0.98, *coins[1:]], final)
    page.handle("coin-0").press("Home")
    page.until("store.pasted.path.join() === '0,1,5'")
    page.handle("coin-1").press("Home")
    page.until("store.pasted.path.join() === '0,1,2,3'")
    page.handle("coin-final").press("PageUp")
    expect(page.handle("coin-final")).to_have_attribute("aria-valuenow", "0.5000")
    expect(page.row(3).locator("td.verdict")).to_have_text("accepted")


def test_without_probabilities_the_walk_says_what_it_needs(page: Scope) -> None:
    paste(page, {"parents": PARENTS, "token_ids": TOKENS})
    expect(page.handle("verdicts")).to_contain_text("it needs the target’s probabilities")
    page.allowed.append("/walk")
    field = page.handle("inspect-probs")
    field.fill("0.5 0.6")
    field.press("Enter")
    expect(page.handle("inspect-error")).to_contain_text("5 nodes need 5 probabilities, not 2")
    field.fill("0.5, 0.6, x, 1, 1")
    field.press("Enter")
    expect(page.handle("inspect-error")).to_contain_text("probability 3 is no number")
    field.fill("0.5 0.6 0.9 0.3 0.2")
    field.press("Enter")
    expect(page.handle("inspect-error")).to_be_hidden()
    coins = page.store("store.pasted.step.sampling.uniform_samples")
    assert verdicts(page) == expected(coins, page.store("store.pasted.step.sampling.final_uniform"))
    page.handle("inspect-coins").click()
    page.until(f"store.pasted.step.sampling.uniform_samples[0] !== {coins[0]}")


def test_printouts_and_files_are_read_and_pickles_are_not(page: Scope) -> None:
    paste(page, "parents = tensor([-1,  0,  0])\ntoken_ids = array([5, 7])")
    expect(page.handle("inspect-facts")).to_have_text("parents and tokens, read as literal or printout")
    assert page.labels == ["0 root", "1 5", "2 7"]
    out = io.BytesIO()
    np.savez(
        out,
        retrive_next_token=[[1, -1]],
        retrive_next_sibling=[[-1, -1]],
        draft_token=[[4, 1]],
        target_probs=np.array([[[0.1, 0.9], [0.5, 0.5]]], dtype=np.float32),
        uniform_samples=[[0.5, 0.5]],
    )
    choose(page, "step.npz", out.getvalue())
    expect(page.handle("inspect-facts")).to_have_text("retrieve arrays, read as .npz")
    page.until("store.pasted.path.join() === '0,1'")
    page.allowed.append("/api/inspections")
    choose(page, "trees.pt", b"PK\x03\x04")
    expect(page.handle("paste-error")).to_contain_text("trees.pt is a pickle")


def test_several_trees_and_their_recorded_paths(page: Scope, tmp_path: Path) -> None:
    tree = {"node_token_ids": [5, 6, 7], "node_depths": [1, 1, 2], "parents": [-1, 0, 0, 1]}
    rounds = [{"accepted_indices": path, "tree": tree} for path in ([0, 1, 3], [0, 2])]
    path = tmp_path / "rounds.json"
    path.write_text(json.dumps({"round_trees": rounds, "output_ids": [1, 5, 7, 8, 6, 9]}), encoding="utf-8")
    page.handle("tab-inspect").click()
    page.drop(path)
    expect(page.handle("inspect-facts")).to_have_text(
        "rounds of trees, read as JSON · 1.50 accepted drafts over 2 rounds"
    )
    assert page.labels == ["0 root", "1 5", "3 7", "8", "2 6"]  # the bonus, 8, is output_ids' own
    assert page.cells(VERDICT) == ["root", "accepted", "no target", "accepted"]
    expect(page.handle("inspect-missing")).to_contain_text("target probabilities")
    page.handle("inspect-next").click()
    expect(page.handle("inspect-tree")).to_have_text("2 of 2")
    assert page.cells(VERDICT) == ["root", "no target", "accepted", "no target"]
    assert page.store("store.pasted.bonus.token_id") == 9


def test_acceptance_records_are_a_chart(page: Scope) -> None:
    given = {
        "num_drafts": 4,
        "num_draft_tokens": 12,
        "num_accepted_tokens": 6,
        "num_accepted_tokens_per_pos": [3, 2, 1],
    }
    paste(page, given)
    record = recognise(given).acceptance
    assert record is not None
    found = json.loads(
        page.page.evaluate("() => JSON.stringify(document.getElementById('chart-foreign').data)")
    )
    assert found[0]["y"] == record.conditional()
    assert found[1]["y"] == record.unconditional() == [0.75, 0.5, 0.25]
    expect(page.handle("foreign-facts")).to_contain_text("vLLM")
    expect(page.handle("tree")).to_be_hidden()
    paste(page, {"speculative_decoding": {"total_accepted_draft_tokens": 6, "total_draft_tokens": 12}})
    expect(page.page.locator("#foreign-none")).to_be_visible()
    expect(page.handle("inspect-missing")).to_contain_text("verify steps, acceptance by depth")


def test_the_run_and_the_inspector_keep_apart(page: Scope) -> None:
    page.run("p", max_new_tokens=6)
    page.finished()
    paste(page, WALKED)
    expect(page.handle("tree")).to_have_attribute("data-step", "pasted")
    page.handle("tab-step").click()
    page.shows(2)
    assert page.page.locator("#pointers g path").count() == 0
    page.handle("tab-inspect").click()
    expect(page.handle("tree")).to_have_attribute("data-step", "pasted")
    expect(page.handle("coin-0")).to_be_visible()
    page.page.locator('[data-testid="text"] [data-step="1"]').first.click()
    page.shows(1)
    expect(page.handle("tab-step")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 800)])
def test_axe_finds_nothing_serious_in_the_inspector(
    open_page: OpenPage, url: str, theme: str, width: int
) -> None:
    scope = open_page(url, width=width, theme=theme)
    scope.ready()
    scope.handle("tab-inspect").click()
    assert findings(scope) == []
    paste(scope, WALKED)
    expect(scope.handle("coin-0")).to_be_visible()
    assert findings(scope) == []
    scope.handle("encode-show").click()
    scope.handle("encode-next").click()
    assert findings(scope) == []
    paste(scope, {"parents": [-1, 2, 1], "token_ids": [5, 6]})
    assert findings(scope) == []
    assert scope.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
