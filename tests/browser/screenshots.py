"""Draw the live page as the documentation shows it, light and dark.

    python -m tests.browser.screenshots

trains `jobs/pretrain_lm.yaml` on a cluster and with a service of its own, kills one of its workers,
and once that is made good, and a further checkpoint kept, writes ``docs/images/page_light.png`` and
``docs/images/page_dark.png``. With ``--url`` and a token in TRAINFLOW_TOKEN_FILE it draws the page
of a job that is there, instead. Needs Chromium; takes two minutes on two cores.

Process: a person's; Chromium is its child.
"""

import argparse
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.conftest import running_chromium
from tests.integration.served import Ground, Service, serving
from trainflow.cli.stop_signals import ending_in_order
from trainflow.data.pack import PackOptions, pack_corpus

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
DRAWN = ("Loss,", "Gradient norm", "Step time", "Checkpoint lag")
SIZE: ViewportSize = {"width": 1200, "height": 1500}
KILLED_AFTER_STEP, DRAWN_AFTER_STEP = 50, 100
WITHIN_MS = 60_000


def draw(browser: Browser, url: str, token: str) -> None:
    """Draw a job's page, which stays open meanwhile, in both colour schemes.

    The job trains, has kept a checkpoint, and has recovered from something.
    """
    with browser.new_context(reduced_motion="reduce", viewport=SIZE) as context:
        page = context.new_page()
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Use this token").click()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            wait_drawn(page)
            page.screenshot(path=IMAGES / f"page_{scheme}.png")


def wait_drawn(page: Page) -> None:
    """Wait until all that the pictures are to show is on the page."""
    expect(page.locator("#figure-state")).to_contain_text("running", timeout=WITHIN_MS)
    expect(page.locator("#figure-recoveries")).to_contain_text("median", timeout=WITHIN_MS)
    expect(page.locator("#figure-goodput")).to_contain_text("%", timeout=WITHIN_MS)
    for name in DRAWN:
        line = page.get_by_role("slider", name=name).locator(".line").first
        expect(line).to_have_attribute("d", re.compile("L"), timeout=WITHIN_MS)
    expect(page.locator(".notice:visible")).to_have_count(0)


def describe_job(ground: Ground) -> dict[str, Any]:
    """Return the job of the README, a longer one, for four CPUs."""
    job = yaml.safe_load((ROOT / "jobs" / "pretrain_lm.yaml").read_text())
    place = ground.folder.parent
    job["args"] = {"export_dir": str(place / "model")}
    job["data"] = {"url": str(place / "corpus")}
    job["checkpoint"] = {"url": str(place / "checkpoints"), "every_steps": 20}
    job["training"] |= {"max_steps": 400}
    job["workers"] |= {"target": 3, "spares": 1}
    return job


def train(service: Service) -> str:
    """Have a job lose a worker and make that good; returns its id."""
    job_id = service.submit(describe_job(service.ground))
    service.wait_job(job_id, lambda job: job["last_step"] >= KILLED_AFTER_STEP)
    workers = service.ask("GET", f"/v1/jobs/{job_id}/workers")["workers"]
    (pid,) = (each["pid"] for each in workers if each["rank"] == 1)
    psutil.Process(pid).kill()
    service.wait_job(
        job_id,
        lambda job: job["last_step"] >= DRAWN_AFTER_STEP and job["status"]["spares"] == 1,
    )
    return job_id


@ending_in_order()
def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a job's page")
    url = parser.parse_args().url
    IMAGES.mkdir(exist_ok=True)
    if url is not None:
        token = Path(os.environ["TRAINFLOW_TOKEN_FILE"]).read_text().strip()
        with running_chromium() as browser:
            draw(browser, url, token)
        return
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground.make(Path(folder))
        shutil.copytree(ROOT / "jobs", ground.folder / "jobs")
        pack_corpus("stdlib", str(ground.folder.parent / "corpus"), options=PackOptions())
        with serving(ground) as service:
            job_id = train(service)
            with running_chromium() as browser:
                draw(browser, f"{ground.url}/#/jobs/{job_id}", ground.token)


if __name__ == "__main__":
    main()
