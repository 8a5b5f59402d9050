"""Going back and looking: the scrubber, the text, the nodes linked with each other, the reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from scope import Scope


@pytest.fixture
def looked_at(live: Scope, recorded: Path) -> Scope:
    live.open(recorded)
    live.shows(live.store("store.run.newest"))
    return live


def sampled_step(scope: Scope) -> int:
    """A step with a tried child, and candidates that nobody tried."""
    wanted = "([, step]) => step.decisions?.length && step.tree.token_ids.length > step.decisions.length + 1"
    return int(scope.store(f"[...store.run.whole].find({wanted})[0]"))


def test_the_scrubber_goes_to_any_step_by_pointer_and_keys(looked_at: Scope) -> None:
    scrubber = looked_at.handle("scrubber")
    box = scrubber.bounding_box()
    assert box is not None
    looked_at.page.mouse.click(box["x"] + 2, box["y"] + 50)
    looked_at.shows(0)
    expect(scrubber).to_have_attribute("aria-valuenow", "0")
    scrubber.press("ArrowRight")
    looked_at.shows(1)
    looked_at.page.mouse.move(box["x"] + 2, box["y"] + 50)
    looked_at.page.mouse.down()
    looked_at.page.mouse.move(box["x"] + 40, box["y"] + 50)
    looked_at.page.mouse.up()
    looked_at.shows(3)
    looked_at.page.locator("h1").click()
    looked_at.page.keyboard.press("ArrowLeft")
    looked_at.shows(2)
    looked_at.page.keyboard.press("End")
    looked_at.shows(looked_at.store("store.run.newest"))
    expect(looked_at.page.locator("#next")).to_be_disabled()


def test_a_token_of_the_text_shows_its_step(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    token = looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first
    token.click()
    looked_at.shows(index)
    expect(looked_at.page.locator("#stepno")).to_have_text(str(index))
    here = looked_at.page.locator('[data-testid="text"] .here [data-step]')
    assert set(here.evaluate_all("spans => spans.map((span) => span.dataset.step)")) == {str(index)}


def test_pointing_at_a_node_marks_it_everywhere(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    node = looked_at.store("store.view.decisions[0].node")
    looked_at.point_at(f"{node} ")
    assert "hot" in (looked_at.row(node).get_attribute("class") or "")
    assert "hot" in (looked_at.verdict(node).get_attribute("class") or "")
    card = looked_at.page.locator("#card")
    expect(card).to_be_visible()
    for word in ("id", "rank", "log-weight", "p draft", "p target"):
        expect(card).to_contain_text(word)
    looked_at.row(1).hover()
    expect(card).to_be_hidden()
    expect(looked_at.page.locator(".halo.hot")).to_be_visible()
    looked_at.verdict(node).hover()
    assert "hot" in (looked_at.row(node).get_attribute("class") or "")


def test_a_scroll_under_the_pointer_moves_the_card_and_does_not_lose_it(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    node = looked_at.store("store.view.decisions[0].node")
    looked_at.point_at(f"{node} ")
    card = looked_at.page.locator("#card")
    expect(card).to_contain_text(f"node {node}")
    looked_at.handle("tree").evaluate("plot => plot.dispatchEvent(new Event('scroll'))")
    expect(card).to_contain_text(f"node {node}")
    looked_at.page.wait_for_timeout(100)
    expect(card).to_be_visible()
    looked_at.page.mouse.move(2, 2)
    expect(card).to_be_hidden()


def test_a_nodes_origin_stands_in_the_tree_the_table_and_the_card(looked_at: Scope) -> None:
    index = looked_at.store(
        "[...store.run.whole].find(([, step]) => new Set(step.tree.origin).size === 2)[0]"
    )
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    origins = looked_at.store("store.view.step.tree.origin")
    for node, origin in enumerate(origins, start=1):
        expect(looked_at.row(node)).to_have_attribute("data-origin", origin)
    words = {"ngram": "n-gram", "dflash": "dflash"}
    for origin, name in words.items():
        mark = looked_at.row(origins.index(origin) + 1).locator(".ngm")
        expect(mark).to_have_attribute("title", f"origin: {name}")
    looked_at.point_at("1 ")
    expect(looked_at.page.locator("#card")).to_contain_text(f"origin{words[origins[0]]}")
    expect(looked_at.page.locator(".halo.hot")).to_have_attribute("data-shape", origins[0])
    expect(looked_at.page.locator('#legend [data-of="n-gram"]')).to_be_visible()
    expect(looked_at.page.locator("#treefacts")).to_contain_text("hybrid")


def test_nodes_are_linked_by_keyboard_both_ways(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    looked_at.page.locator("h1").click()
    looked_at.page.keyboard.press("t")
    expect(looked_at.handle("tree")).to_be_focused()
    for _ in range(12):
        looked_at.page.keyboard.press("ArrowLeft")
    assert looked_at.store("store.selected") == 0
    looked_at.page.keyboard.press("ArrowRight")
    first = looked_at.store("store.view.nodes[0].children[0] ?? 'bonus'")
    assert looked_at.store("store.selected") == first == 1
    assert "sel" in (looked_at.row(1).get_attribute("class") or "")
    expect(looked_at.page.locator("#card")).to_contain_text("node 1")
    looked_at.row(1).focus()
    looked_at.page.keyboard.press("ArrowDown")
    expect(looked_at.row(2)).to_be_focused()
    assert looked_at.store("store.selected") == 2
    expect(looked_at.page.locator(".halo.sel")).to_be_visible()


def test_the_walk_says_every_verdict_in_words_and_numbers(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    for decision in looked_at.store("store.view.step.decisions"):
        said = looked_at.verdict(decision["node"]).text_content() or ""
        assert said.startswith(f"node {decision['node']} ")
        assert said.endswith(f":{decision['verdict']}")
        for word in ("p ", "cumulative ", "coin "):
            assert word in said
    bonus = looked_at.verdict("bonus").text_content() or ""
    assert bonus.startswith("bonus") and "left, coin" in bonus


def test_the_reason_stands_beside_the_targets_likeliest_tokens(looked_at: Scope) -> None:
    index = sampled_step(looked_at)
    looked_at.page.locator(f'[data-testid="text"] [data-step="{index}"]').first.click()
    looked_at.shows(index)
    row = looked_at.store("store.view.step.target.rows[0]")
    node = looked_at.store("store.view.decisions[0].node")
    looked_at.row(node).click()
    target = looked_at.page.locator("#why ol.target li")
    assert target.count() == len(row["token_ids"]) == 8
    assert looked_at.page.locator("#why ol.drafter li").count() == len(row["draft_token_ids"])
    expect(looked_at.handle("why")).to_contain_text("entropy")
    expect(looked_at.page.locator("#why .reason")).to_contain_text("coin")
    untried = looked_at.store("store.view.nodes.find((n) => n.verdict === 'untried')?.n ?? 0")
    looked_at.row(untried).click()
    expect(looked_at.page.locator("#whyfacts")).to_contain_text("was never tried")


def test_panes_can_be_made_taller_by_keys(looked_at: Scope) -> None:
    tree = looked_at.handle("tree")
    before = tree.bounding_box()
    line = looked_at.page.get_by_role("separator", name="Height of the tree")
    line.focus()
    for _ in range(4):
        looked_at.page.keyboard.press("ArrowDown")
    after = tree.bounding_box()
    assert before is not None and after is not None
    assert after["height"] == pytest.approx(before["height"] + 64, abs=2)
