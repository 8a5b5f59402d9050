"""What the page costs its reader, in a real Chromium on the default model.

drawn   milliseconds from a step's arrival at the page to its tree being painted, while the model decodes
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


def run(page: Page, budget: int, tokens: int, temperature: float) -> None:
    """Decode without the chat template, which seldom ends by itself; returns when it is finished."""
    page.get_by_test_id("prompt").fill(PROMPT)
    values = {"budget": budget, "max_new_tokens": tokens, "temperature": temperature, "seed": SEED}
    for name, value in values.items():
        page.get_by_test_id(name).fill(str(value))
    page.get_by_test_id("chat").uncheck()
    before = page.url
    page.get_by_test_id("run").click()
    page.wait_for_function("before => location.href !== before", arg=before)  # the run's own address
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
        "--budget", type=int, default=63, help="of the run that is drawn (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=120, help="of that run (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=1000, help="of the run whose heap is read (default: %(default)s)"
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
        measure_drawing(page, options.budget, options.tokens)
        measure_heap(page, page.context.new_cdp_session(page), 15, options.steps)
        browser.close()


if __name__ == "__main__":
    main()
