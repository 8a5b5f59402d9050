"""A run, from the prompt to its last token: controls, settings in mid-run, what stands at a refused field."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from scope import Scope


def test_a_run_is_drawn_from_its_first_step_to_its_last(live: Scope) -> None:
    live.run("Count from one to ten in words.", max_new_tokens=24, seed=1)
    live.finished()
    last = live.store("store.run.newest")
    live.shows(last)
    tokens = live.page.locator('[data-testid="text"] [data-step]')
    assert tokens.count() == live.store("store.run.summary.committed") <= 24
    origins = set(tokens.evaluate_all("spans => spans.map((span) => span.dataset.origin)"))
    assert "bonus" in origins <= {"dflash", "ngram", "bonus"}
    written = "".join(tokens.all_text_contents()).replace("↵", "")
    assert written == live.store("store.run.outlines.flatMap((outline) => outline.texts).join('')")
    tau = live.store("store.run.summary.tau")
    expect(live.handle("tiles")).to_contain_text(f"{tau:.2f}")
    expect(live.handle("stages")).to_contain_text("verify")
    assert live.page.locator('[data-testid="tree"] .js-plotly-plot').count() == 1


def test_the_next_steps_obey_a_slider_moved_in_mid_run(live: Scope) -> None:
    live.run("Tell me about the sea.", max_new_tokens=120, pace=8, budget=7)
    live.wait_step(2)
    live.handle("temperature-slider").fill("0.85")
    live.handle("budget-slider").fill("31")
    expect(live.handle("temperature")).to_have_value("0.85")
    newest = "store.run.outlines.at(-1).settings"
    live.until(f"{newest}.temperature === 0.85 && {newest}.budget === 31")
    assert live.store("store.run.outlines[0].settings.budget") == 7
    expect(live.page.locator("#treefacts")).to_contain_text("of 31 nodes")
    expect(live.page.locator("#treefacts")).to_contain_text("T 0.85")
    expect(live.handle("scrubber")).to_contain_text("temperature 0 → 0.85")
    live.handle("stop").click()
    live.finished()
    expect(live.handle("state")).to_contain_text("stopped")


def test_the_drafter_is_switched_in_mid_run(live: Scope) -> None:
    choice = live.handle("drafter")
    expect(choice.locator("input[value=hybrid]")).to_be_checked()
    live.run("Tell me about the wind.", max_new_tokens=120, pace=8)
    live.wait_step(1)
    for name, shown in (("dflash", "dflash"), ("ngram", "n-gram"), ("hybrid", "hybrid")):
        choice.locator(f"input[value={name}]").check()
        live.until(f"store.run.outlines.at(-1).settings.drafter === '{name}'")
        expect(live.page.locator("#treefacts")).to_contain_text(shown)
    live.handle("stop").click()
    live.finished()


def test_pause_step_and_resume(live: Scope) -> None:
    live.run("Tell me about the moon.", max_new_tokens=60, pace=6)
    live.wait_step(1)
    at = live.paused()
    live.page.wait_for_timeout(400)
    assert live.store("store.run.newest") == at
    live.handle("step").click()
    live.wait_step(at + 1)
    expect(live.handle("state")).to_contain_text(f"Paused after step {at + 1}")
    assert live.store("store.run.newest") == at + 1
    live.handle("pace-full").click()
    live.handle("resume").click()
    live.finished()


def test_a_run_can_be_begun_step_by_step(live: Scope) -> None:
    live.handle("prompt").fill("Two and two make")
    live.handle("step").click()
    live.shows(0)
    expect(live.handle("state")).to_contain_text("Paused after step 0")
    live.page.keyboard.press(".")
    live.shows(1)
    live.handle("prompt").press("End")
    live.page.keyboard.press(".")  # text, where one types
    assert live.handle("prompt").input_value() == "Two and two make."
    assert live.store("store.run.newest") == 1
    live.handle("stop").click()
    live.finished()


def test_the_servers_sentence_stands_at_the_field_it_is_about(live: Scope) -> None:
    live.run("Say something long about trees.", max_new_tokens=200, pace=2)
    live.wait_step(0)
    live.handle("temperature").fill("9")
    sentence = live.page.locator("#e-temperature")
    expect(sentence).to_contain_text("temperature cannot be 9")
    expect(live.handle("error")).to_contain_text("temperature cannot be 9")
    expect(live.handle("temperature")).to_have_attribute("aria-invalid", "true")
    live.handle("temperature").fill("0.5")
    expect(sentence).to_be_hidden()
    expect(live.handle("error")).to_be_hidden()
    live.until("store.run.settings.temperature === 0.5")
    live.handle("stop").click()


def test_a_seed_past_two_to_the_53_is_kept_to_the_digit(live: Scope) -> None:
    live.run("Hello", seed="18446744073709551615", max_new_tokens=2)
    live.finished()
    assert live.store("store.run.head.settings.seed") == "18446744073709551615"


def test_thresholds_below_one_are_lossy_wherever_it_is_said(live: Scope) -> None:
    expect(live.handle("lossy")).to_have_attribute("data-state", "lossless")
    live.page.locator("#thresholds summary").click()
    live.run("Tell me a joke.", threshold_acc="0.5", temperature=1, seed=5, max_new_tokens=12)
    live.finished()
    expect(live.handle("lossy")).to_have_attribute("data-state", "lossy")
    expect(live.handle("lossy")).to_have_text("lossy")
    expect(live.page.locator("#rule")).to_contain_text("lossy: accept when coin < cumulative / 0.5")


def test_methods_without_a_tree_are_drawn_as_what_they_are(live: Scope) -> None:
    live.run("One, two,", method="autoregressive", max_new_tokens=3)
    live.finished()
    expect(live.page.locator("#treefacts")).to_contain_text("nothing drafted")
    expect(live.handle("verdicts")).to_contain_text("Nothing was drafted")
    live.run("One, two,", method="chain", max_new_tokens=4)
    live.finished()
    parents = live.store("store.view.step.tree.parents")
    assert parents == list(range(-1, len(parents) - 1))
    expect(live.page.locator("#treefacts")).to_contain_text(re.compile(r"\d+ nodes? · chain"))
