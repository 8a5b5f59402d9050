"""Races and runs side by side: lanes, figures and differences are the library's; the replay is at the
measured pace; scrubbers are linked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from raced import OTHER_TEXT, PARTS_AT, PLAIN_MS, RacingServer
from scope import OpenPage, Scope
from test_access import findings

from ddtree.lanes import given, tokens_per_second
from ddtree.statistics import run_statistics
from ddtree.trace import Step
from ddtree.trace_file import load_trace


@pytest.fixture
def racing(recorded: Path, tmp_path: Path) -> Iterator[str]:
    with RacingServer(recorded, tmp_path) as url:
        yield url


def raced(open_page: OpenPage, url: str, prompt: str = "On your marks", theme: str = "light") -> Scope:
    """The default race, run to its end: plain, chain, tree."""
    scope = open_page(url, theme=theme)
    scope.ready()
    scope.handle("prompt").fill(prompt)
    scope.handle("tab-race").click()
    scope.handle("race-start").click()
    over(scope)
    return scope


def over(scope: Scope) -> None:
    expect(scope.handle("lanes-facts")).to_contain_text("finished")
    expect(scope.handle("differences").locator("li").first).to_be_visible()


def runs(scope: Scope) -> list[str]:
    lanes = scope.handle("lane-grid").locator("article")
    return [str(lane.get_attribute("data-run")) for lane in lanes.all()]


def steps_of(url: str, run_id: str) -> list[Step]:
    return load_trace(httpx.get(f"{url}/api/runs/{run_id}/trace").content).steps


def lane_text(scope: Scope, lane: int) -> str:
    return "".join(scope.handle(f"lane-{lane}").locator(".t").all_text_contents()).replace("↵\n", "\n")


def texts(steps: list[Step]) -> list[str]:
    return [text for step in steps for text in (step.committed.texts if step.committed else [])]


def at(scope: Scope, lane: int) -> int:
    return int(scope.handle(f"lane-{lane}").get_attribute("data-at") or -1)


def test_a_race_shows_each_lanes_text_and_the_librarys_figures(open_page: OpenPage, racing: str) -> None:
    scope = raced(open_page, racing)
    steps = [steps_of(racing, run) for run in runs(scope)]
    rows = scope.handle("lanes-table").locator("tbody tr")
    expect(rows).to_have_count(3)
    base = run_statistics(steps[0])
    for lane, own in enumerate(steps, 1):
        assert lane_text(scope, lane) == "".join(texts(own))
        found = run_statistics(own)
        cells = rows.nth(lane - 1).locator("th, td").all_text_contents()
        speed, against = tokens_per_second(found), tokens_per_second(base)
        assert found.tau and speed and against
        assert cells[2:6] == [str(found.committed), str(found.steps), f"{found.tau:.2f}", f"{speed:.1f}"]
        assert cells[6] == ("1" if lane == 1 else f"{speed / against:.2f}x")
        total = found.stage_means()["total"]
        assert cells[7] == (
            f"{total:.0f}" if total >= 100 else f"{total:.1f}" if total >= 10 else f"{total:.2f}"
        )
    assert base.stage_means()["total"] == PLAIN_MS


def test_the_first_difference_names_both_tokens_and_what_the_target_gave_them(
    open_page: OpenPage, racing: str
) -> None:
    scope = raced(open_page, racing)
    left, _, tree = (steps_of(racing, run) for run in runs(scope))
    parted, equal = scope.handle("differences").locator("li").all()
    assert parted.get_attribute("data-kind") == "parted" and equal.get_attribute("data-kind") == "equal"
    said = parted.text_content() or ""
    assert f"lane 2 and lane 1 part at token {PARTS_AT}" in said
    assert OTHER_TEXT in said  # as text
    expect(parted.locator("b b")).to_have_count(0)
    assert f"same {len(texts(tree))} tokens" in (equal.text_content() or "")
    seen = given(left[PARTS_AT], 0, left[PARTS_AT].committed.token_ids[0], 7)  # type: ignore[union-attr]
    if seen.left is None:
        assert "lane 1’s record" not in said
    else:
        assert re.search(r"In lane 1’s record the target gave them [\d.e-]+ and (·|[\d.e-]+)", said)
    marked = scope.handle("lane-2").locator(".parts")
    expect(marked).to_have_text(OTHER_TEXT)
    expect(scope.handle("lane-1").locator(".parts")).to_have_text(texts(left)[PARTS_AT].replace("\n", "↵\n"))


def test_scrubbers_are_linked_by_time_step_and_token(open_page: OpenPage, racing: str) -> None:
    scope = raced(open_page, racing)
    plain, _, tree = (steps_of(racing, run) for run in runs(scope))
    assert at(scope, 1) == len(plain)
    scope.handle("link-step").check(force=True)
    scope.handle("lane-1-at").fill("4")
    expect(scope.handle("lane-3")).to_have_attribute("data-at", "4")
    scope.handle("link-token").check(force=True)
    scope.handle("lane-1-at").fill("6")  # one token a step
    done = [sum(len(s.committed.token_ids) for s in tree[:k] if s.committed) for k in range(len(tree) + 1)]
    wanted = next(k for k, tokens in enumerate(done) if tokens >= 6)
    expect(scope.handle("lane-3")).to_have_attribute("data-at", str(wanted))
    scope.handle("link-time").check(force=True)
    scope.handle("lane-1-at").fill("5")
    spent = [0.0]
    for step in tree:
        spent.append(spent[-1] + (step.timing_ms.total if step.timing_ms else 0.0))
    in_time = max(k for k, ms in enumerate(spent) if ms <= 5 * PLAIN_MS)
    expect(scope.handle("lane-3")).to_have_attribute("data-at", str(in_time))
    expect(scope.handle("lanes-clock")).to_have_text(f"{5 * PLAIN_MS:.0f} ms")
    scope.handle("link-none").check(force=True)
    scope.handle("lane-1-at").press("ArrowRight")
    expect(scope.handle("lane-1")).to_have_attribute("data-at", "6")
    assert at(scope, 3) == in_time
    scope.handle("lane-3").locator('[data-step="2"]').first.click()
    expect(scope.handle("lane-3")).to_have_attribute("data-at", "3")


def test_the_replay_shows_texts_at_the_measured_pace(open_page: OpenPage, racing: str) -> None:
    scope = raced(open_page, racing)
    length = at(scope, 1)
    scope.page.emulate_media(reduced_motion="no-preference")
    scope.handle("replay").click()
    expect(scope.handle("replay")).to_have_text("Pause")
    scope.page.wait_for_function(
        "() => Number(document.querySelector('[data-testid=\"lane-1\"]').dataset.at) >= 3"
    )
    scope.handle("replay").click()
    clock = float((scope.handle("lanes-clock").text_content() or "").removesuffix(" ms"))
    assert at(scope, 1) == int(clock / PLAIN_MS) < length
    scope.page.emulate_media(reduced_motion="reduce")
    scope.handle("replay").click()
    expect(scope.handle("lane-1")).to_have_attribute("data-at", str(length))  # at once
    expect(scope.handle("replay")).to_have_text("Replay")


def test_a_finished_race_opens_again_and_two_stored_runs_are_compared(
    open_page: OpenPage, racing: str
) -> None:
    first = runs(raced(open_page, racing, "One"))
    scope = open_page(racing)
    scope.ready()
    scope.handle("tab-race").click()
    races = scope.handle("race-list")
    expect(races.locator("option")).to_have_count(2)
    races.select_option(index=1)
    over(scope)
    assert runs(scope) == first
    scope.page.get_by_text("Compare stored runs").click()
    scope.handle("compare-left").select_option(first[2])
    scope.handle("compare-right").select_option(first[1])
    scope.handle("compare").click()
    expect(scope.handle("lane-grid").locator("article")).to_have_count(2)
    over(scope)
    assert runs(scope) == [first[2], first[1]]
    expect(scope.handle("differences").locator("li")).to_contain_text(f"part at token {PARTS_AT}")
    speedups = scope.handle("lanes-table").locator("tbody td:nth-child(7)").all_text_contents()
    assert speedups == ["·", "·"]  # neither is autoregressive
    scope.handle("lane-1-at").fill("3")
    scope.handle("lane-1").get_by_role("button", name="Open").click()
    scope.until(f"store.run?.id === '{first[2]}' && store.at === 2")
    expect(scope.handle("tab-step")).to_have_attribute("aria-selected", "true")


def test_lanes_are_added_removed_and_refused_in_a_sentence(open_page: OpenPage, racing: str) -> None:
    scope = open_page(racing)
    scope.ready()
    scope.handle("tab-race").click()
    scope.handle("race-start").click()
    expect(scope.handle("lanes-error")).to_have_text(
        "The race was not started: prompt is empty: type one first"
    )
    scope.handle("prompt").fill("Go")
    scope.handle("race-add").click()
    expect(scope.handle("race-add")).to_be_disabled()
    scope.handle("race-lane-4-budget").fill("5000")
    scope.handle("race-start").click()
    expect(scope.handle("lanes-error")).to_contain_text("lane 4: budget cannot be 5000")
    scope.handle("race-lane-4-remove").click()
    scope.handle("race-lane-2-remove").click()
    expect(scope.handle("race-lane-1-remove")).to_be_disabled()
    scope.handle("race-lane-2-budget").fill("31")
    scope.handle("race-start").click()
    over(scope)
    assert len(runs(scope)) == 2
    head = httpx.get(f"{racing}/api/runs/{runs(scope)[1]}").json()["head"]["settings"]
    assert (head["method"], head["budget"]) == ("ddtree", 31)
    scope.allowed.append("422")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_race(open_page: OpenPage, racing: str, theme: str) -> None:
    scope = raced(open_page, racing, theme=theme)
    assert findings(scope) == []
    assert scope.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
