"""See in a browser when the live page shows an event of a job.

Process: the harness; Chromium is its child.  Thread: main.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import Page, expect, sync_playwright

from trainflow.clock import SYSTEM_CLOCK

_WITHIN_MS = 60_000
_LOOK_EVERY_MS = 20
_IS_SHOWN = """([kind, after]) => [...document.querySelectorAll(".events li")].some(
  (li) => Number(li.dataset.number) > after && li.querySelector(".kind").textContent === kind)"""


@dataclass(frozen=True)
class PageWatch:
    """A job's page that is open."""

    page: Page

    def wait_event(self, kind: str, after: int) -> float:
        """Wait until an event of a kind is shown whose number is greater; CLOCK_REALTIME then."""
        self.page.wait_for_function(
            _IS_SHOWN, arg=[kind, after], polling=_LOOK_EVERY_MS, timeout=_WITHIN_MS
        )
        return SYSTEM_CLOCK.unix_s()


@contextmanager
def watching(url: str) -> Generator[PageWatch | None]:
    """Have a job's page open; None where there is no Chromium."""
    path = shutil.which("chromium")
    if path is None:
        print("no Chromium: what the page shows is not measured", flush=True)
        yield None
        return
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            page = browser.new_page()
            page.goto(url)
            expect(page.locator(".events li").last).to_be_visible(timeout=_WITHIN_MS)
            yield PageWatch(page)
        finally:
            browser.close()
