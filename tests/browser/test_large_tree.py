"""Trees of 1024 nodes: the overview and its frame, search, folds, levels of detail, and what passes by."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect
from replayed import ReplayedServer
from scope import OpenPage, Scope

sys.path.insert(0, str(Path(__file__).parent.parent / "ddtree"))

from fakes import FakeDrafter, FakeTarget

from ddtree.decoder import TreeDecoder
from ddtree.settings import Settings
from ddtree.trace import Trace
from ddtree.trace_file import load_trace

VOCAB = 24
NODES = 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with full trees of 1024 nodes, sampled; its numbers are a made-up model's."""
    torch.manual_seed(3)
    drafter = FakeDrafter(torch.log_softmax(2 * torch.randn(6, VOCAB), dim=1))

    def rows(context: tuple[int, ...]) -> list[float]:
        draw = random.Random(str(context))
        return [draw.gauss(0, 2) for _ in range(VOCAB)]

    settings = Settings(budget=NODES, temperature=1.0, seed=5, max_new_tokens=4, chat=False)
    decoder = TreeDecoder(FakeTarget(rows, VOCAB), drafter, settings)  # type: ignore[arg-type]
    list(decoder.decode("a"))
    path = tmp_path_factory.mktemp("large") / "large.json"
    path.write_text(decoder.trace().to_json(), encoding="utf-8")
    return path


@pytest.fixture
def opened(open_page: OpenPage, large: Path, tmp_path: Path) -> Iterator[Scope]:
    with ReplayedServer(large, tmp_path, steps=12, seconds=0.4) as url:
        scope = open_page(url)
        scope.ready()
        scope.open(large)
        scope.shows(scope.store("store.run.newest"))
        expect(scope.handle("tree-overview")).to_be_visible()
        yield scope


def first(large: Path) -> Trace:
    return load_trace(large.read_bytes())


def scroll(scope: Scope) -> float:
    return float(scope.handle("tree").evaluate("(plot) => plot.scrollTop"))


def test_the_frame_of_the_overview_is_dragged(opened: Scope) -> None:
    strip = opened.handle("tree-overview")
    box = strip.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    opened.page.mouse.move(middle, box["y"] + 2)
    opened.page.mouse.down()
    top = scroll(opened)
    assert top == 0
    opened.page.mouse.move(middle, box["y"] + box["height"] / 2, steps=4)
    half = scroll(opened)
    opened.page.mouse.move(middle, box["y"] + box["height"] - 2, steps=4)
    opened.page.mouse.up()
    height = opened.handle("tree").evaluate("(plot) => plot.scrollHeight - plot.clientHeight")
    assert half == pytest.approx(height / 2, rel=0.1) and scroll(opened) == pytest.approx(height, abs=2)
    frame = strip.locator(".frame")
    expect(frame).to_have_css("position", "absolute")
    low = frame.bounding_box()
    assert low is not None and low["y"] + low["height"] == pytest.approx(box["y"] + box["height"], abs=4)
    strip.press("Home")
    assert scroll(opened) == 0
    expect(strip).to_have_attribute("aria-valuenow", "0")
    strip.press("PageDown")
    assert scroll(opened) > 100


def test_a_token_is_found_and_matches_are_walked_through(opened: Scope, large: Path) -> None:
    opened.page.locator("h1").click()
    opened.page.keyboard.press("Home")
    opened.shows(0)
    step = first(large).steps[0]
    assert step.tree is not None
    texts = [step.root.text, *step.tree.texts]
    matches = [n for n, text in enumerate(texts) if "c" in text]
    assert len(matches) > 5
    opened.page.keyboard.press("/")
    search = opened.handle("tree-search")
    expect(search).to_be_focused()
    search.fill("c")
    expect(opened.handle("tree-found")).to_contain_text(f"{len(matches)} found")
    opened.until(f"{matches}.includes(store.selected)")
    at = matches.index(opened.store("store.selected"))
    for _ in range(3):
        search.press("Enter")
        at = (at + 1) % len(matches)
        assert opened.store("store.selected") == matches[at]
    expect(opened.handle("tree-found")).to_have_text(f"{at + 1} of {len(matches)} found")
    search.press("Shift+Enter")
    assert opened.store("store.selected") == matches[at - 1]
    opened.handle("tree-next").click()
    assert opened.store("store.selected") == matches[at]
    halo = opened.page.locator(".halo.sel").bounding_box()
    plot = opened.handle("tree").bounding_box()
    assert halo and plot and plot["y"] <= halo["y"] <= plot["y"] + plot["height"]  # it can be seen
    search.fill("zz")
    expect(opened.handle("tree-found")).to_have_text("0 found")
    expect(opened.handle("tree-next")).to_be_disabled()
    search.press("Escape")
    expect(opened.handle("tree")).to_be_focused()


def below(parents: list[int], node: int) -> set[int]:
    out: set[int] = set()
    for n in range(1, len(parents)):
        if parents[n] == node or parents[n] in out:
            out.add(n)
    return out


def test_a_branch_is_folded_and_opened(opened: Scope, large: Path) -> None:
    opened.page.locator("h1").click()
    opened.page.keyboard.press("Home")
    opened.shows(0)
    tree = first(large).steps[0].tree
    assert tree is not None
    hidden = below(tree.parents, 1)
    assert len(hidden) > 20
    height = opened.page.locator(".canvas").bounding_box()
    opened.row(1).click()
    opened.handle("tree-fold").click()
    expect(opened.handle("tree-fold")).to_have_text(re_open(hidden, opened))
    items = opened.page.get_by_role("tree").get_by_role("treeitem")
    bonus_hidden = opened.store("store.view.bonus.parent") in hidden | {1}
    expect(items).to_have_count(NODES + 2 - len(hidden) - bonus_hidden)
    expect(opened.page.locator("#treeitem-1")).to_have_attribute("aria-expanded", "false")
    folded = opened.page.locator(".canvas").bounding_box()
    assert height and folded and folded["height"] < height["height"]
    opened.row(min(hidden)).click()  # what is selected is shown: the branch opens
    expect(items).to_have_count(NODES + 2)
    opened.handle("tree").focus()
    opened.handle("tree-fold-rest").click()
    visited = set(opened.store("[...store.view.visited]"))
    left = NODES + 2 - sum(len(below(tree.parents, n)) for n in tops(tree.parents, visited))
    expect(items).to_have_count(left)
    opened.handle("tree-fold-rest").click()
    expect(items).to_have_count(NODES + 2)


def re_open(hidden: set[int], scope: Scope) -> str:
    bonus = scope.store("store.view.bonus.parent") in hidden | {1}
    return f"Open branch ({len(hidden) + bonus})"


def tops(parents: list[int], visited: set[int]) -> list[int]:
    """The nodes where the walk's surroundings end: not visited, children of visited ones."""
    return [n for n in range(1, len(parents)) if n not in visited and parents[n] in visited]


def test_levels_of_detail_drop_labels_and_keep_what_the_walk_met(opened: Scope) -> None:
    full = len(opened.labels)
    height = opened.page.locator(".canvas").bounding_box()
    opened.handle("zoom-out").click()
    expect(opened.handle("zoom")).to_have_text("small")
    opened.handle("zoom-out").click()
    expect(opened.handle("zoom-out")).to_be_disabled()
    expect(opened.page.locator(".halo.sel")).to_be_in_viewport()
    dots = opened.page.locator(".canvas").bounding_box()
    assert height and dots and dots["height"] < 0.4 * height["height"]
    tried = opened.store("store.view.decisions.length")
    assert 0 < len(opened.labels) <= tried + 2 < full
    selected = opened.store("(store.view.nodes[store.selected] ?? store.view.bonus).text")
    assert selected in opened.labels
    opened.handle("tree").focus()
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("ArrowRight")  # the dots are walked through as well
    expect(opened.page.locator(".halo.sel")).to_be_visible()
    opened.handle("zoom-in").click()
    opened.handle("zoom-in").click()
    expect(opened.handle("zoom-in")).to_be_disabled()


def test_large_steps_are_drawn_as_they_pass_and_in_full_afterwards(opened: Scope) -> None:
    opened.page.evaluate(
        "() => { window.drawn = []; document.addEventListener('drawn', ({ detail }) =>"
        " window.drawn.push(performance.now() - detail.received)); }"
    )
    opened.run("Again and again")
    opened.until("store.run.state === 'finished'")
    times = opened.page.evaluate("window.drawn")
    assert len(times) >= 2 and statistics.median(times) < 3000  # a fault, not a slow machine
    opened.until("store.at === store.run.newest")
    decisions = opened.store("store.view.decisions.length")
    expect(opened.page.locator('[data-testid="verdicts"] .say[data-node]')).to_have_count(decisions + 1)
    expect(opened.page.locator('[data-testid="nodes"] tbody tr')).to_have_count(NODES + 1)
