"""A headless Chromium, and a service whose jobs the tests write themselves.

Process: the test's; Chromium is its child.  Thread: the service listens in one of its own, another
reads what the tests write.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.browser.served import Served, serve_runs

# Of what is loaded from the service alone, nothing needs to be looked up elsewhere.
ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
]

# What has to be shown in less time says so itself; a machine may be loaded.
expect.set_options(timeout=20_000)

OpenPage = Callable[..., Page]


@dataclass
class Complaints:
    """What a page has complained of.

    Attributes:
        texts: of its console's errors and warnings, and of errors that nobody caught.
        are_expected: set by a test in which there have to be some.
    """

    texts: list[str] = field(default_factory=list[str])
    are_expected: bool = False

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.texts.append(message.text)


@contextmanager
def running_chromium() -> Generator[Browser]:
    """Have a Chromium of this machine run.

    Raises:
        FileNotFoundError: there is none.
    """
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("needs Chromium (apt-get install chromium)")
    # As root it has no sandbox; it is shown nothing but the page.
    arguments = [*ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


# Of a module, no longer: as long as it is there, this thread has an event loop, which would be in
# the way of other tests.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser; tests are skipped where there is none."""
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """What pages complain of: nothing, unless the test expects it."""
    found = Complaints()
    yield found
    assert found.are_expected or found.texts == []


@pytest.fixture
def contexts() -> Iterator[list[BrowserContext]]:
    """What is open in the browser."""
    found: list[BrowserContext] = []
    yield found
    close_all(found)


def close_all(contexts: list[BrowserContext]) -> None:
    while contexts:
        contexts.pop().close()


@pytest.fixture
def open_page(
    chromium: Browser, contexts: list[BrowserContext], complaints: Complaints
) -> OpenPage:
    """Open an address in a browser that has nothing of others before it."""

    def open_page(url: str, **settings: Any) -> Page:
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", complaints.on_console)
        page.on("pageerror", lambda error: complaints.texts.append(str(error)))
        page.goto(url)
        return page

    return open_page


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TRAINFLOW_HOME."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TRAINFLOW_HOME", str(home))
    monkeypatch.delenv("TRAINFLOW_DATABASE_URL", raising=False)
    return home


Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serve(home: Path, contexts: list[BrowserContext]) -> Serve:
    """Have a service listen, with given settings; pages are closed before it is gone."""
    del home  # its runs are there

    @contextmanager
    def serve(**changes: Any) -> Generator[Served]:
        with serve_runs(**changes) as served:
            yield served
            close_all(contexts)

    return serve
