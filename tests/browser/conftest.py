"""A real Chromium on a real server. A page must stay silent: an error in its console fails the test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "app"))

from scope import OpenPage, Scope
from serving import ServerProcess

LAUNCH = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.fail("the browser tests need Chromium: install it, or name it with CHROMIUM=")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=LAUNCH)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """`open_page(url, width=1440, height=900, theme="light")`: a page of its own in a fresh profile."""
    with ExitStack() as stack:

        def start(url: str, width: int = 1440, height: int = 900, theme: str = "light") -> Scope:
            context: BrowserContext = chromium.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                reduced_motion="reduce",  # a colour on its way is neither here nor there
                accept_downloads=True,
            )
            stack.callback(context.close)
            scope = Scope(context.new_page(), url)
            stack.callback(scope.assert_silent)
            return scope

        yield start


@pytest.fixture
def live(open_page: OpenPage, model_server: ServerProcess) -> Scope:
    """The page of the server with the default model, ready to run."""
    scope = open_page(model_server.url)
    scope.ready()
    return scope


@pytest.fixture(scope="session")
def recorded(
    chromium: Browser, model_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of the default model as a file, sampled at temperature 1; downloaded through the page."""
    context = chromium.new_context(accept_downloads=True)
    scope = Scope(context.new_page(), model_server.url)
    scope.ready()
    scope.run("Name three rivers and where they flow.", temperature=1, seed=11, max_new_tokens=40)
    scope.finished()
    path = tmp_path_factory.mktemp("recorded") / "run.json"
    scope.export(path)
    context.close()
    return path
