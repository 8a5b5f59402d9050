"""How many CPU threads the service should decode with: tokens a second by thread count, nobody watching and
with a browser that draws every step, run by run in turn on one machine.

`app.engine.default_threads` stands on these figures.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from contextlib import ExitStack
from typing import Any

from common import chromium, commit, machine, ratio_interval, served
from playwright.sync_api import Page, sync_playwright
from websockets.sync.client import connect

PROMPT = "Explain to a child how rain is made, and why the sky is blue."


class Served:
    """`ddtree serve` with a number of threads, in a process of its own."""

    def __init__(self, threads: int, stack: ExitStack) -> None:
        self.url = stack.enter_context(served("--threads", str(threads)))
        while self.get("/api/health")["model"]["state"] == "loading":
            time.sleep(0.2)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def newest(self) -> dict[str, Any] | None:
        runs = self.get("/api/runs?limit=1")["runs"]
        return runs[0] if runs else None

    def rate(self, page: Page | None, tokens: int) -> float:
        """Tokens a second of one run, by the time inside its prompt and steps."""
        before = self.newest()
        if page is None:
            content = {"type": "start", "prompt": PROMPT, "settings": {"max_new_tokens": tokens, "seed": 1}}
            with connect(self.url.replace("http", "ws", 1) + "/ws/decode", max_size=None) as starter:
                starter.send(json.dumps(content))
                while json.loads(starter.recv())["type"] != "started":
                    pass
        else:
            page.get_by_test_id("prompt").fill(PROMPT)
            page.get_by_test_id("max_new_tokens").fill(str(tokens))
            page.get_by_test_id("seed").fill("1")
            page.get_by_test_id("run").click()
        while (run := self.newest()) is None or run == before or run["state"] != "finished":
            time.sleep(0.3)
        return float(run["committed"] / run["summary"]["wall_s"])


def measure(counts: list[int], rounds: int, tokens: int) -> dict[tuple[int, str], list[float]]:
    rates: dict[tuple[int, str], list[float]] = {}
    with ExitStack() as stack:
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        stack.callback(browser.close)
        servers = {threads: Served(threads, stack) for threads in counts}
        for server in servers.values():
            server.rate(None, tokens)
        for done in range(rounds):
            for watched in ("nobody", "browser"):
                for threads, server in servers.items():
                    page = None
                    if watched == "browser":
                        page = browser.new_page(viewport={"width": 1440, "height": 900})
                        page.goto(server.url)
                        page.wait_for_selector("[data-testid=run]:enabled")
                    rates.setdefault((threads, watched), []).append(server.rate(page, tokens))
                    if page is not None:
                        page.close()
            print(f"  {done + 1}/{rounds}", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, max(1, cores - 1), cores}))
    parser.add_argument("--rounds", type=int, default=6, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of a run (default: %(default)s)")
    arguments = parser.parse_args()
    print(f"threads: {machine()}, {cores} usable, commit {commit()}")
    rates = measure(arguments.threads, arguments.rounds, arguments.tokens)
    for (threads, watched), found in sorted(rates.items(), key=lambda item: item[0][1]):
        base = rates[arguments.threads[0], watched]
        mean, low, high = ratio_interval([rate / other for rate, other in zip(found, base, strict=True)])
        print(
            f"{watched}, {threads} threads: {sum(found) / len(found):.1f} tokens/s, "
            f"{mean:.2f} of {arguments.threads[0]} (95 % {low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
