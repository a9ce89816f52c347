"""What the README has a new user do: serve, submit, watch, kill, stop, resume, look back."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import running_chromium
from tests.integration.served import WITHIN_S, find_port, tiny_job, wait_until
from trainflow.cli.exit_codes import ExitCode

pytestmark = [pytest.mark.ray, pytest.mark.browser, pytest.mark.slow]

SHOWN_WITHIN_MS = 30_000


class Desk:
    """A person at a terminal.

    Attributes:
        folder: with a job's code and its file.
        url: of the person's own service.
    """

    def __init__(self, place: Path):
        self.folder = place / "project"
        self.folder.mkdir()
        port = find_port()
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._log = place / "serve.log"
        self._token = place / "token"
        self._environment = {
            **os.environ,
            "TRAINFLOW_HOME": str(place / "home"),
            "TRAINFLOW_SERVER": self.url,
            "TRAINFLOW_TOKEN_FILE": str(self._token),
        }

    @property
    def token(self) -> str:
        return self._token.read_text().strip()

    def run(self, *arguments: str, leaves_with: int = 0) -> str:
        """Give a command of TrainFlow; returns what it has printed."""
        done = subprocess.run(
            [sys.executable, "-m", "trainflow", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == leaves_with, (arguments, done.stdout, done.stderr)
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json"))

    def make_token(self) -> None:
        scopes = ("--scope", "read", "--scope", "submit")
        self.run("token", "create", "me", *scopes, "--to", str(self._token))

    @contextmanager
    def serving(self) -> Generator[None]:
        """Have the service run in another terminal, until Ctrl-C."""
        settings = ["--set", f"http.port={self._port}", "--set", f"roots=[{self.folder}]"]
        command = [sys.executable, "-m", "trainflow", "serve", "--cpus", "4", *settings]
        with (
            self._log.open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log, env=self._environment) as service,
        ):
            try:
                wait_until(
                    lambda: "serving at" in self._log.read_text() or service.poll() is not None,
                    self._log.read_text,
                )
                assert service.poll() is None, self._log.read_text()
                yield
            finally:
                service.send_signal(signal.SIGINT)
                assert service.wait(WITHIN_S) == 0, self._log.read_text()

    def kill_member(self, job_id: str) -> None:
        """Kill the worker that has rank 0, as the README has it."""
        (pid,) = (each["pid"] for each in self.ask("workers", job_id) if each["rank"] == 0)
        os.kill(pid, signal.SIGKILL)

    def wait_step(self, job_id: str, step: int) -> None:
        found: dict[str, Any] = {}

        def look() -> bool:
            found.update(self.ask("status", job_id))
            return found["state"] == "running" and found["last_step"] >= step

        wait_until(look, lambda: found)


def enter(page: Page, desk: Desk, job_id: str) -> None:
    """Open a job's page, with the token that it asks for."""
    page.goto(f"{desk.url}/#/jobs/{job_id}")
    page.get_by_label("Token").fill(desk.token)
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(job_id, timeout=SHOWN_WITHIN_MS)


def watch_a_kill(page: Page, desk: Desk, job_id: str) -> None:
    """Kill a member, and see on the page that it was, and that training goes on."""
    expect(page.locator("#figure-goodput")).to_contain_text("%", timeout=SHOWN_WITHIN_MS)
    desk.kill_member(job_id)
    told = page.locator(".events li .kind").filter(has_text="failure")
    expect(told).to_have_count(1, timeout=SHOWN_WITHIN_MS)
    recoveries = page.get_by_role("table", name="Recoveries", exact=True).locator("tbody tr")
    expect(recoveries).to_have_count(1, timeout=SHOWN_WITHIN_MS)
    expect(page.locator("#figure-failures")).to_have_text("1", timeout=SHOWN_WITHIN_MS)


def test_the_first_day_of_a_new_user(tmp_path: Path):
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    desk = Desk(tmp_path)
    shutil.copy(Path(__file__).parent / "command_line_job.py", desk.folder / "my_training.py")
    checkpoint = {"url": str(tmp_path / "checkpoints"), "every_steps": 50}
    training = {"max_steps": 10**6, "global_batch_size": 8, "microbatch_size": 2}
    job_file = desk.folder / "job.yaml"
    job_file.write_text(json.dumps(tiny_job(training=training, checkpoint=checkpoint)))
    desk.make_token()

    with desk.serving(), running_chromium() as browser:
        submit = ("submit", str(job_file), "--working-directory", str(desk.folder))
        job_id = desk.run(*submit).strip()
        desk.wait_step(job_id, 60)
        page = browser.new_page()
        enter(page, desk, job_id)
        state = page.locator("#figure-state")
        expect(state).to_contain_text("running", timeout=SHOWN_WITHIN_MS)
        expect(page.locator(".events li").last).to_contain_text("submitted")
        watch_a_kill(page, desk, job_id)
        desk.run("stop", job_id)
        expect(state).to_contain_text("stopped", timeout=SHOWN_WITHIN_MS)
        stopped_at = desk.ask("status", job_id)["last_step"]
        desk.run("resume", job_id)
        expect(page.locator("#figure-attempt")).to_have_text("2", timeout=SHOWN_WITHIN_MS)
        desk.wait_step(job_id, stopped_at + 20)
        expect(state).to_contain_text("running", timeout=SHOWN_WITHIN_MS)
        desk.run("resume", job_id, leaves_with=ExitCode.CONFLICT)
        desk.run("stop", job_id)
        expect(state).to_contain_text("stopped", timeout=SHOWN_WITHIN_MS)

    desk.run("list", leaves_with=ExitCode.UNREACHABLE)
    with desk.serving():
        (listed,) = desk.ask("list")
        assert (listed["job_id"], listed["state"], listed["attempt"]) == (job_id, "stopped", 2)
        assert desk.ask("status", job_id)["last_step"] >= stopped_at + 20
        kinds = [event["kind"] for event in desk.ask("events", job_id)]
        assert kinds[0] == "submitted"
        assert kinds.count("stopped") == 2
        assert "the line is about to be fitted" in desk.run("logs", job_id, "--worker", "0")
