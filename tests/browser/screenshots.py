"""Draw the live page of a job as the documentation shows it, light and dark.

    python -m tests.browser.screenshots http://127.0.0.1:8000/#/jobs/JOB_ID

writes ``docs/page_light.png`` and ``docs/page_dark.png``, with the token in TRAINFLOW_TOKEN_FILE.
The job trains, has kept a checkpoint, and has recovered from something. Needs Chromium.

Process: a person's; Chromium is its child.
"""

import argparse
import os
import re
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect

from tests.browser.conftest import running_chromium

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
DOCS = Path(__file__).parents[2] / "docs"
DRAWN = ("Loss,", "Gradient norm", "Step time")


def draw(browser: Browser, url: str, token: str, scheme: Scheme) -> None:
    """Draw the page in one colour scheme."""
    with browser.new_context(
        color_scheme=scheme, reduced_motion="reduce", viewport={"width": 1280, "height": 1640}
    ) as context:
        page = context.new_page()
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Use this token").click()
        expect(page.locator("#figure-state")).to_contain_text("running")
        expect(page.locator("#figure-recoveries")).to_contain_text("median")
        for name in DRAWN:
            line = page.get_by_role("img", name=name).locator(".line").first
            expect(line).to_have_attribute("d", re.compile("L"))
        expect(page.locator(".notice:visible")).to_have_count(0)
        page.screenshot(path=DOCS / f"page_{scheme}.png")


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the job's page")
    url = parser.parse_args().url
    token = Path(os.environ["TRAINFLOW_TOKEN_FILE"]).read_text().strip()
    with running_chromium() as browser:
        for scheme in SCHEMES:
            draw(browser, url, token, scheme)


if __name__ == "__main__":
    main()
