"""What the page costs its reader, in a real Chromium on the default model.

drawn   milliseconds from a step's arrival at the page to its tree being painted, while the model decodes
clicked milliseconds from a click on a node of the tree to its mark, card and reasons being painted, of a step
        that the reader looks at while the run decodes on
heap    what the page's heap grows by over a run, after a collection

Arrival is when the socket's message event runs; painted is the first task after the frame whose animation
callback drew the step's tree, arrays and text, layout and paint included. Both run on the server's own
machine, so the browser and the model compete for its cores as they do for a person.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from common import chromium, commit, machine, served
from playwright.sync_api import CDPSession, Page, sync_playwright

PROMPT = "Write a short story about a lighthouse keeper who finds a letter."
SEED = 3  # a run that does not end by itself early
MIB = 1024 * 1024
LIMIT_S = 600

_LISTEN = """
() => {
  window.drawn = [];
  document.addEventListener("drawn", ({ detail }) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.drawn.push([detail.step, performance.now() - detail.received]);
    channel.port2.postMessage(0);
  });
}
"""


_CLICKS = """
() => {
  window.clicked = [];
  addEventListener("click", ({ timeStamp }) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.clicked.push(performance.now() - timeStamp);
    channel.port2.postMessage(0);
  }), true);
}
"""


def run(page: Page, budget: int, tokens: int, temperature: float) -> None:
    """Decode without the chat template, which seldom ends by itself; returns when it is finished."""
    start(page, budget, tokens, temperature)
    finished(page)


def start(page: Page, budget: int, tokens: int, temperature: float) -> None:
    page.get_by_test_id("prompt").fill(PROMPT)
    values = {"budget": budget, "max_new_tokens": tokens, "temperature": temperature, "seed": SEED}
    for name, value in values.items():
        page.get_by_test_id(name).fill(str(value))
    page.get_by_test_id("chat").uncheck()
    before = page.url
    page.get_by_test_id("run").click()
    page.wait_for_function("before => location.href !== before", arg=before)  # the run's own address


def finished(page: Page) -> None:
    page.get_by_test_id("state").get_by_text("Finished").wait_for(timeout=LIMIT_S * 1000)


def heap(session: CDPSession) -> int:
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def steps(page: Page) -> int:
    return int(page.get_by_test_id("scrubber").get_attribute("aria-valuemax") or 0) + 1


def measure_drawing(page: Page, budget: int, tokens: int) -> None:
    run(page, budget, 8, 1.0)  # warm
    page.evaluate("() => (window.drawn.length = 0)")
    began = time.perf_counter()
    run(page, budget, tokens, 1.5)
    took = time.perf_counter() - began
    times = sorted(ms for _, ms in page.evaluate("window.drawn"))
    p90 = times[int(0.9 * (len(times) - 1))]
    print(
        f"drawn   budget {budget}: median {statistics.median(times):.0f} ms, p90 {p90:.0f} ms "
        f"({len(times)} drawings of {steps(page)} steps in {took:.1f} s)"
    )


def measure_clicks(page: Page, budget: int, tokens: int, wanted: int) -> None:
    """Click the nodes in sight one after the other, each moved to first as a hand does."""
    start(page, budget, tokens, 1.5)
    page.wait_for_function("() => document.querySelector('#tree').dataset.step >= 2")
    page.get_by_test_id("follow").click()
    page.wait_for_timeout(500)
    page.evaluate("() => (window.clicked.length = 0)")
    labels = page.locator('[data-testid="tree"] svg text')
    box = page.get_by_test_id("tree").bounding_box()
    assert box is not None
    boxes = [label.bounding_box() for label in labels.all()[:200]]
    seen = [b for b in boxes if b and box["y"] + 40 < b["y"] < box["y"] + box["height"] - 20]
    for at in range(wanted):
        label = seen[at % len(seen)]
        page.mouse.move(label["x"] + 4, label["y"] + 6)
        page.wait_for_timeout(100)
        page.mouse.click(label["x"] + 4, label["y"] + 6)
        page.wait_for_timeout(150)
    times = sorted(page.evaluate("window.clicked"))
    p90 = times[int(0.9 * (len(times) - 1))]
    print(
        f"clicked budget {budget}: median {statistics.median(times):.0f} ms, p90 {p90:.0f} ms "
        f"({len(times)} clicks, {steps(page)} steps so far)"
    )
    page.get_by_test_id("stop").click()
    finished(page)


def measure_heap(page: Page, session: CDPSession, budget: int, wanted: int) -> None:
    run(page, budget, 24, 1.0)
    before = heap(session)
    run(page, budget, 2 * wanted, 2.5)  # so hot that hardly a stop token is drawn
    seen = steps(page)
    growth = (heap(session) - before) / MIB
    print(f"heap    budget {budget}: {growth:+.1f} MiB over {seen} steps, from {before / MIB:.1f} MiB")
    if seen < wanted:
        print(f"        a stop token ended the run before {wanted} steps: run it again")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget",
        type=int,
        nargs="+",
        default=[63],
        help="of the runs that are drawn and clicked (default: 63; 1024 is the most)",
    )
    parser.add_argument("--tokens", type=int, default=120, help="of each of them (default: %(default)s)")
    parser.add_argument("--clicks", type=int, default=25, help="on nodes (default: %(default)s)")
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="of the run whose heap is read, 0: none (default: %(default)s)",
    )
    options = parser.parse_args()
    program = chromium()
    print(f"{machine()}, commit {commit()}, {Path(program).name}")
    with served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.locator('[data-testid="run"]:enabled').wait_for(timeout=LIMIT_S * 1000)
        page.evaluate(_LISTEN)
        page.evaluate(_CLICKS)
        for budget in options.budget:
            measure_drawing(page, budget, options.tokens)
            measure_clicks(page, budget, max(200, options.tokens), options.clicks)
        if options.steps:
            measure_heap(page, page.context.new_cdp_session(page), 15, options.steps)
        browser.close()


if __name__ == "__main__":
    main()
