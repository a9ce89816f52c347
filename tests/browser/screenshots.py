"""Draw the live page as the documentation shows it, light and dark.

    python -m tests.browser.screenshots

writes ``docs/page_light.png`` and ``docs/page_dark.png``. Needs Chromium.

Process: a person's; Chromium is its child.
"""

import os
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect

from tests.browser.conftest import running_chromium
from tests.browser.served import Served, WatchedRun, serve_runs
from trainflow.epochs import EpochId

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
DOCS = Path(__file__).parents[2] / "docs"
JOB = "pretrain-lm-k3v7qz"


def write_job() -> None:
    """Write a job that has lost a worker, and has gone on."""
    run = WatchedRun(JOB, {"team": "language"})
    run.record.add_event("epoch", "epoch 1.1: 3 members from step 0", epoch="1.1")
    run.learn(range(1, 181), world_size=3)
    run.keep(100)
    run.lose(rank=1)
    run.recover(181)
    run.learn(range(181, 261), EpochId(1, 2), world_size=2)
    run.keep(200)
    run.employ(2, spares=1)
    run.publish(failures=1, checkpoint=200)


def draw(browser: Browser, served: Served, scheme: Scheme) -> None:
    """Draw the job's page in one colour scheme."""
    with browser.new_context(
        color_scheme=scheme, reduced_motion="reduce", viewport={"width": 1280, "height": 1500}
    ) as context:
        page = context.new_page()
        page.goto(served.job_url(JOB))
        expect(page.locator("#figure-step")).to_contain_text("260")
        expect(page.locator("#figure-recoveries")).to_contain_text("median")
        expect(page.locator(".chart .line.series-1").first).not_to_have_attribute("d", "")
        expect(page.locator(".notice:visible")).to_have_count(0)
        page.screenshot(path=DOCS / f"page_{scheme}.png")


def main() -> None:
    """Draw both."""
    with tempfile.TemporaryDirectory() as folder, running_chromium() as browser:
        os.environ["TRAINFLOW_HOME"] = folder
        write_job()
        with serve_runs() as served:
            for scheme in SCHEMES:
                draw(browser, served, scheme)


if __name__ == "__main__":
    main()
