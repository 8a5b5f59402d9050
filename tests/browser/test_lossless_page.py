"""Is it lossless? A check of the step shown, with the model that is loaded: its numbers are the library's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import FakeServer
from playwright.sync_api import expect
from scope import OpenPage, Scope
from test_access import findings

from ddtree.goodness import chi_square_tail
from ddtree.lossless import Progress

DRAWS = 1500


def check_step(scope: Scope, index: int, draws: int = DRAWS) -> None:
    scope.page.evaluate("async (index) => (await import('/static/core/store.js')).goTo(index)", arg=index)
    scope.shows(index)
    scope.handle("lossless-open").click()
    scope.handle("lossless-draws").fill(str(draws))
    scope.handle("lossless-start").click()


def test_a_sampled_step_fits_and_its_figures_add_up(live: Scope, recorded: Path) -> None:
    answers: list[dict[str, Any]] = []
    live.page.on("response", lambda r: answers.append(r.json()) if "/api/checks/" in r.url and r.ok else None)
    live.open(recorded)
    trace = json.loads(recorded.read_bytes())
    index = max(range(12), key=lambda i: trace["steps"][i]["accept"]["accept_token_num"])
    check_step(live, index)
    expect(live.handle("lossless-result")).to_be_visible(timeout=90_000)
    view = answers[-1]
    first = view["result"]["sampler"][0]
    assert view["draws"] == first["draws"] == DRAWS
    assert first["p_value"] > 1e-3  # a right sampler falls below in one of a thousand checks
    if first["count"] == len(first["categories"]):
        assert sum(c["observed"] for c in first["categories"]) == DRAWS
        chi = sum((c["observed"] - c["expected"]) ** 2 / c["expected"] for c in first["categories"])
        assert first["chi_square"] == pytest.approx(chi)
        assert first["p_value"] == pytest.approx(chi_square_tail(chi, first["count"] - 1))
    assert all(c["expected"] >= 5 for c in first["categories"])
    said = live.handle("lossless-fit-0")
    expect(said).to_contain_text(f"{DRAWS} draws in {first['count']} categor")
    expect(said).to_contain_text("as the target’s row")
    expect(said).to_contain_text(f"Total variation {first['total_variation']:.4f}")
    expect(said).to_contain_text(f"expected noise {first['expected_variation']:.4f}")
    drawn = json.loads(
        live.page.evaluate("() => JSON.stringify(document.getElementById('chart-lossless-0').data)")
    )
    assert drawn[0]["y"] == [c["observed"] for c in first["categories"][:24]]
    assert drawn[1]["y"] == [c["expected"] for c in first["categories"][:24]]
    # the recorded row of the root: what was expected of its likeliest tokens
    row = trace["steps"][index]["target"]["rows"][0]
    expected = {c["token_id"]: c["expected"] / DRAWS for c in first["categories"]}
    for token_id, prob in zip(row["token_ids"], row["probs"], strict=True):
        if token_id in expected:
            assert expected[token_id] == pytest.approx(prob, abs=1e-4)
    rows = live.handle("lossless-rows").locator("tbody tr")
    expect(rows).to_have_count(len(view["result"]["rows"]))
    assert all(row["largest"] < 0.02 for row in view["result"]["rows"])


def test_a_greedy_step_is_plain_decodings(live: Scope) -> None:
    live.run("Name three rivers and where they flow.", temperature=0, max_new_tokens=24)
    live.finished()
    check_step(live, 1)
    expect(live.handle("lossless-result")).to_be_visible(timeout=90_000)
    committed = live.store("store.run.outlines.slice(1).reduce((sum, o) => sum + o.committed, 0)")
    expect(live.handle("lossless-greedy")).to_have_text(
        f"equal: {committed} tokens from this step on, one by one, are plain decoding’s."
    )
    expect(live.page.locator("#lossless-sampler")).to_be_hidden()


def endless(*asked: Any) -> Iterator[Progress]:
    for done in range(10**6):
        time.sleep(0.002)
        yield Progress("draws", done, 10**6)


@pytest.fixture
def fake(open_page: OpenPage, tmp_path: Path) -> Iterator[Scope]:
    with FakeServer(FakeEngine(checks=endless), data=tmp_path) as server:
        scope = open_page(server.url, theme="dark")
        scope.ready()
        yield scope


def test_progress_comes_every_second_and_a_check_can_be_cancelled(fake: Scope) -> None:
    fake.run("p", max_new_tokens=8)
    fake.finished()
    check_step(fake, 0)
    said = fake.handle("lossless-progress")
    expect(said).to_contain_text("draws")
    seen = said.text_content()
    expect(said).not_to_have_text(seen or "")  # it goes on
    assert findings(fake) == []
    fake.handle("lossless-cancel").click()
    expect(said).to_have_text("cancelled")
    expect(fake.handle("lossless-start")).to_be_visible()


def test_a_lossy_step_is_refused_with_the_reason(fake: Scope) -> None:
    fake.allowed.append("/lossless")
    fake.page.locator("#thresholds summary").click()
    fake.run("p", max_new_tokens=8, temperature=1, threshold_acc=0.5)
    fake.finished()
    check_step(fake, 0)
    expect(fake.handle("lossless-error")).to_contain_text("thresholds below 1 (single 1, accumulated 0.5)")
    expect(fake.handle("lossless-error")).to_contain_text("nothing to check")
