"""The page, as a person uses it: through its handles."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

PATIENCE_MS = 30_000
"""A step of the model on a busy machine may take seconds."""

expect.set_options(timeout=PATIENCE_MS)


class Scope:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.allowed: list[str] = []  # parts of messages that a test provokes
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error.stack or error)))
        page.goto(url)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def assert_silent(self) -> None:
        """Nothing was written to the console but what the test provoked."""
        heard = [text for text in self.complaints if not any(part in text for part in self.allowed)]
        assert heard == []

    # ---- finding ----

    def handle(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    def row(self, node: int) -> Locator:
        return self.page.locator(f'[data-testid="nodes"] tr[data-node="{node}"]')

    def verdict(self, node: int | str) -> Locator:
        return self.page.locator(f'[data-testid="verdicts"] .say[data-node="{node}"]')

    @property
    def labels(self) -> list[str]:
        """The texts that Plotly drew in the tree."""
        return self.page.locator('[data-testid="tree"] svg text').all_text_contents()

    def cells(self, column: int) -> list[str]:
        return self.page.locator(f'[data-testid="nodes"] tbody tr > :nth-child({column})').all_text_contents()

    def shows_cells(self, column: int, values: Sequence[object]) -> None:
        """Until the table's column reads so: what was changed is drawn a frame later."""
        cells = self.page.locator(f'[data-testid="nodes"] tbody tr > :nth-child({column})')
        expect(cells).to_have_text([str(value) for value in values])

    def store(self, expression: str) -> Any:
        """Evaluate `expression` over `store`, the page's state."""
        load = "const { store } = await import('/static/core/store.js')"
        return self.page.evaluate(f"async () => {{ {load}; return {expression}; }}")

    def until(self, expression: str, patience_s: float = PATIENCE_MS / 1000) -> None:
        """Until `expression` over `store` is true."""
        limit = time.monotonic() + patience_s
        while not self.store(expression):
            assert time.monotonic() < limit, f"never came true: {expression}"
            self.page.wait_for_timeout(30)

    def point_at(self, label: str) -> None:
        """Move the pointer onto the tree's node whose label begins with `label`."""
        begins = re.compile("^" + re.escape(label))
        text = self.page.locator('[data-testid="tree"] svg text').filter(has_text=begins).first
        text.scroll_into_view_if_needed()
        box = text.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    # ---- doing ----

    def ready(self) -> None:
        expect(self.handle("run")).to_be_enabled(timeout=120_000)

    def set(self, **settings: Any) -> None:
        for name, value in settings.items():
            if name in ("method", "drafter"):
                self.page.locator(f'[data-testid="{name}"] input[value="{value}"]').check(force=True)
            else:
                self.handle(name).fill(str(value))

    def run(self, prompt: str, **settings: Any) -> None:
        """Start a run; returns when the server has taken it."""
        before = self.store("store.run?.id ?? null")
        self.handle("prompt").fill(prompt)
        self.set(**settings)
        self.handle("run").click()
        self.until(f"store.run && store.run.id !== {json.dumps(before)}")

    def wait_step(self, index: int) -> None:
        """Until the step of this index has arrived."""
        self.until(f"(store.run?.newest ?? -1) >= {index}")

    def shows(self, index: int) -> None:
        """Until the tree of this step is drawn."""
        expect(self.handle("tree")).to_have_attribute("data-step", str(index))

    def finished(self) -> None:
        expect(self.handle("state")).to_contain_text("Finished")

    def paused(self) -> int:
        """Pause; returns the newest step's index."""
        self.handle("pause").click()
        expect(self.handle("state")).to_contain_text("Paused")
        return int(self.store("store.run.newest"))

    def export(self, path: Path) -> None:
        with self.page.expect_download() as download:
            self.handle("export").click()
        download.value.save_as(path)

    def open(self, path: Path) -> None:
        """Import by button; returns when every step has arrived."""
        before = self.store("store.run?.id ?? null")
        self.choose(path)
        self.until(
            f"store.run && store.run.id !== {json.dumps(before)} && store.run.ready === store.run.head.steps"
        )

    def choose(self, path: Path) -> None:
        with self.page.expect_file_chooser() as chooser:
            self.handle("import").click()
        chooser.value.set_files(path)

    def drop(self, path: Path) -> None:
        """Drop a file on the page, as a drag from the desktop does."""
        transfer = self.page.evaluate_handle(
            "([name, text]) => { const data = new DataTransfer();"
            " data.items.add(new File([text], name, { type: 'application/json' })); return data; }",
            [path.name, path.read_text(encoding="utf-8")],
        )
        for event in ("dragover", "drop"):
            self.page.dispatch_event("body", event, {"dataTransfer": transfer})


OpenPage = Callable[..., Scope]
"""`open_page(url, width=1440, height=900, theme="light")` of conftest.py."""
