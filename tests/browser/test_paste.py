"""A pasted tree: built by the server, drawn by the same panes; the worked example to the digit."""

from __future__ import annotations

from playwright.sync_api import expect
from scope import Scope

NODE, TOKEN, ID, PARENT, DEPTH, RANK, LOG_WEIGHT, DRAFT, TARGET, NEXT_TOKEN, NEXT_SIBLING = range(1, 12)


def test_the_worked_example_is_the_first_one_and_holds_to_the_digit(live: Scope) -> None:
    live.handle("paste").click()
    live.handle("paste-build").click()
    expect(live.handle("paste-dialog")).to_be_hidden()
    live.page.wait_for_selector('[data-testid="tree"][data-step="pasted"]')
    assert live.cells(NODE) == ["0", "1", "2", "3", "4", "5"]
    heights = "rows => rows.map(row => row.offsetHeight)"
    assert live.handle("nodes").locator("tbody tr").evaluate_all(heights) == [19] * 6  # --h-row: all are seen
    assert live.cells(ID)[1:] == ["10", "20", "30", "11", "21"]
    assert live.cells(DEPTH)[1:] == ["1", "2", "3", "1", "2"]
    assert live.cells(PARENT) == ["-1", "0", "1", "2", "0", "1"]
    assert live.cells(LOG_WEIGHT)[1:] == ["-0.357", "-0.868", "-1.091", "-1.204", "-1.273"]
    assert live.cells(NEXT_TOKEN) == ["1", "2", "3", "-1", "-1", "-1"]
    assert live.cells(NEXT_SIBLING) == ["-1", "4", "5", "-1", "-1", "-1"]
    assert live.labels == ["0 root", "1 10", "2 20", "3 30", "5 21", "4 11"]
    expect(live.page.locator("#treefacts")).to_contain_text("5 of 5 nodes, pasted")
    expect(live.handle("verdicts")).to_contain_text("no walk")


def test_every_example_can_be_built(live: Scope) -> None:
    sizes = ["5 of 5 nodes", "5 of 5 nodes", "6 of 100 nodes", "1 of 3 nodes"]
    for choice, size in enumerate(sizes):
        live.handle("paste").click()
        live.handle("paste-example").select_option(str(choice))
        live.handle("paste-build").click()
        expect(live.handle("paste-dialog")).to_be_hidden()
        expect(live.page.locator("#treefacts")).to_contain_text(f"{size}, pasted")


def test_what_cannot_be_built_is_said_in_the_dialog(live: Scope) -> None:
    live.allowed.append("/api/inspections")
    live.handle("paste").click()
    wrong = live.handle("paste-error")
    live.handle("paste-json").fill("{")
    live.handle("paste-build").click()
    expect(wrong).to_contain_text("not JSON")
    rows = '{"top_log_probs": [[-1.0, -0.5]], "top_token_ids": [[1, 2]], "budget": 3}'
    live.handle("paste-json").fill(rows)
    live.handle("paste-build").click()
    expect(wrong).to_contain_text("row 0")
    expect(wrong).to_contain_text("column 1")
    expect(live.handle("paste-dialog")).to_be_visible()


def test_a_pasted_tree_gives_way_to_the_run(live: Scope) -> None:
    live.run("A b c", max_new_tokens=3)
    live.finished()
    last = live.store("store.run.newest")
    live.handle("paste").click()
    live.handle("paste-build").click()
    live.page.locator("#back").click()
    live.shows(last)
    expect(live.page.locator("#stepno")).to_have_text(str(last))
