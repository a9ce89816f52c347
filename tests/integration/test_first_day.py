"""What the README has a new user do with the service: its own commands, in its order."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import running_chromium
from tests.integration.served import find_port
from tests.integration.terminal import Terminal, open_terminal, read_blocks
from trainflow.cli.exit_codes import ExitCode

pytestmark = [
    pytest.mark.ray,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).parents[2]
WITHIN_S = 480.0
WITHIN_MS = 1000 * WITHIN_S
SERVED_AT = "http://127.0.0.1:8000"
BLOCKS = ["serve", "submit", "kill", "stop", "resume", "serve again", "look back", "go on"]


class Day:
    """A person who has read the README, and does what it says.

    Attributes:
        blocks: the README's commands.
        first: where the service serves.
        second: where it is asked.
        url: of the service.
        folder: what the person has cloned.
    """

    def __init__(self, folder: Path, exits: ExitStack):
        self.folder = folder
        self.url = f"http://127.0.0.1:{(port := find_port())}"
        text = (ROOT / "README.md").read_text().replace(SERVED_AT, self.url)
        self.blocks = read_blocks(text)
        for name in (".gitignore", "jobs"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)
        scripts = folder / ".venv" / "bin"
        scripts.mkdir(parents=True)
        (scripts / "activate").write_text(f"PATH={scripts}:$PATH\n")
        (scripts / "trainflow").write_text(f'#!/bin/sh\nexec {sys.executable} -m trainflow "$@"\n')
        (scripts / "trainflow").chmod(0o755)
        others = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINFLOW", "RAY"))}
        env = others | {
            "TRAINFLOW_HOME": str(folder / "home"),
            "TRAINFLOW_SERVICE__HTTP__PORT": str(port),
        }

        def open_one(name: str) -> Terminal:
            log = folder / f"{name}.log"
            return exits.enter_context(open_terminal(folder, log, env, WITHIN_S))

        self.first, self.second = open_one("first"), open_one("second")

    @property
    def token(self) -> str:
        return (self.folder / "out" / "token").read_text().strip()

    @property
    def job_id(self) -> str:
        return self.second.run("echo $ID").strip()

    def ask(self, path: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.url}/v1/jobs/{self.job_id}{path}"
        return httpx.get(url, headers=headers, timeout=60).raise_for_status().json()

    @contextmanager
    def serving(self, block: str) -> Generator[None]:
        """Give a block's commands in the first terminal, of which the last stays until Ctrl-C."""
        *before, serve = self.blocks[block]
        for command in before:
            self.first.run(command)
        begun = len(self.first.read())
        self.first.begin(serve)
        self.first.wait(lambda: "serving at" in self.first.read()[begun:])
        yield
        self.first.press_ctrl_c()
        assert "ending the service" in self.first.finish(begun, 0)

    def do(self, block: str) -> list[str]:
        """Give a block's commands in the second terminal; returns what each has printed."""
        return [self.second.run(command) for command in self.blocks[block]]

    def wait_job(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def look() -> bool:
            found.update(self.ask())
            return holds(found)

        self.second.wait(look)
        return found

    def submit_and_follow(self) -> None:
        """Give the second block's commands, and press Ctrl-C where it says that one may."""
        *before, follow = self.blocks["submit"]
        for command in before:
            self.second.run(command)
        assert "Ctrl-C" in follow
        begun = len(self.second.read())
        self.second.begin(follow)
        self.second.wait(lambda: "launched" in self.second.read()[begun:])
        self.second.press_ctrl_c()
        told = self.second.finish(begun, ExitCode.DETACHED)
        assert f"trainflow events {self.job_id} -f --after" in told

    def kill_member(self) -> None:
        """Give the commands that kill a worker, with the pid of one that the first has shown."""
        look, kill = self.blocks["kill"]
        table = self.second.run(look)
        header, *rows = [line.split() for line in table.splitlines() if line.strip()]
        column = header.index("PID")
        pid = next(row[column] for row in rows if "member" in row)
        assert "PID" in kill
        self.second.run(kill.replace("PID", pid))


def enter(page: Page, day: Day) -> None:
    """Open the job's page, with the token that it asks for."""
    page.goto(f"{day.url}/#/jobs/{day.job_id}")
    page.get_by_label("Token").fill(day.token)
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(day.job_id, timeout=WITHIN_MS)


def watch_a_kill(page: Page, day: Day) -> None:
    """Kill a member, and see on the page that it was, and that training goes on."""
    expect(page.locator("#figure-goodput")).to_contain_text("%", timeout=WITHIN_MS)
    day.kill_member()
    told = page.locator(".events li .kind").filter(has_text="failure")
    expect(told).to_have_count(1, timeout=WITHIN_MS)
    recoveries = page.get_by_role("table", name="Recoveries", exact=True).locator("tbody tr")
    expect(recoveries).to_have_count(1, timeout=WITHIN_MS)
    expect(page.locator("#figure-failures")).to_have_text("1", timeout=WITHIN_MS)


def live_through_the_morning(day: Day, page: Page) -> int:
    """Submit, watch, kill, stop and resume; returns the step at which the job was stopped."""
    day.submit_and_follow()
    day.wait_job(lambda job: job["state"] == "running" and job["last_step"] > 25)
    enter(page, day)
    state = page.locator("#figure-state")
    expect(state).to_contain_text("running", timeout=WITHIN_MS)
    watch_a_kill(page, day)
    day.do("stop")
    expect(state).to_contain_text("stopped", timeout=WITHIN_MS)
    stopped_at = day.wait_job(lambda job: job["state"] == "stopped")["last_step"]
    day.do("resume")
    expect(page.locator("#figure-attempt")).to_have_text("2", timeout=WITHIN_MS)
    day.wait_job(lambda job: job["state"] == "running" and job["last_step"] > stopped_at + 5)
    expect(state).to_contain_text("running", timeout=WITHIN_MS)
    return stopped_at


def test_the_first_day_of_a_new_user(tmp_path: Path):
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with ExitStack() as exits:
        day = Day(tmp_path, exits)
        assert list(day.blocks) == BLOCKS
        with day.serving("serve"), running_chromium() as browser:
            stopped_at = live_through_the_morning(day, browser.new_page())
        job_id = day.job_id
        with day.serving("serve again"):
            listed, events, log = day.do("look back")
            assert re.search(rf"^{job_id} +running ", listed, re.MULTILINE)
            for kind in ("submitted", "failure", "recovered", "stopped", "resumed"):
                assert f" {kind}: " in events
            assert log.strip()
            day.wait_job(lambda job: job["stale_s"] > 60)
            day.do("go on")
            day.wait_job(lambda job: job["attempt"] == 3 and job["last_step"] > stopped_at + 10)
            day.second.run("trainflow stop $ID")
            day.wait_job(lambda job: job["state"] == "stopped")
            attempts = [(each["number"], each["state"]) for each in day.ask("/attempts")]
            assert attempts == [(1, "stopped"), (2, "lost"), (3, "stopped")], json.dumps(attempts)
