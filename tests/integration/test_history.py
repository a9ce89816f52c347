"""A real run becomes history while it trains, and stays there when its cluster is gone."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_command_line import CommandLine, read_until
from tests.testbed.daemons import wait_for
from trainflow.coordination.run_state import RunState
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.ingest_thread import IngestThread

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WITHIN_S = 120.0


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path / "home")
    yield command_line
    command_line.call("down")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with open_history(f"sqlite:///{tmp_path / 'history.db'}") as history:
        thread = IngestThread(Ingester(history.database, tmp_path / "home" / "runs"))
        thread.start()
        yield history
        thread.stop()


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: tiny\n"
        "entrypoint: tests.integration.command_line_job:train\n"
        "training: {max_steps: 1000000, global_batch_size: 8, microbatch_size: 2}\n"
        "data: {dataset: 'tests.integration.command_line_job:make_points'}\n"
        "workers: {minimum: 1, target: 2}\n"
        "monitoring: {log_every_steps: 10}\n"
        "labels: {team: a}\n"
    )
    return str(path)


def test_a_run_becomes_history_while_it_trains(
    command_line: CommandLine, job: str, history: History
):
    run = command_line.start("run", job)
    read_until(run, "step=10/")
    wait_for(lambda: bool(history.jobs.list().jobs), WITHIN_S, "job in the history")
    (listed,) = history.jobs.list().jobs
    job_id = listed.job_id

    def shows_training() -> bool:
        found = history.jobs.get(job_id)
        ranks = {row["rank"] for row in found.workers}
        return found.job.state is RunState.RUNNING and {0, 1} <= ranks and found.job.last_step > 10

    wait_for(shows_training, WITHIN_S, "status of a run that trains")
    stale_s = history.jobs.get(job_id).stale_s
    assert stale_s is not None
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 7

    wait_for(lambda: history.jobs.get(job_id).job.is_finished, WITHIN_S, "ending in the history")
    found = history.jobs.get(job_id).job
    assert (found.state, found.exit_code, found.labels) == (RunState.STOPPED, 7, {"team": "a"})
    folder = command_line.home / "runs" / job_id
    written = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    wait_for(lambda: history.jobs.get(job_id).job.last_event == len(written), WITHIN_S, "events")
    told = history.events.after(job_id)
    assert [(each.number, each.kind) for each in told] == [
        (line["number"], line["kind"]) for line in written
    ]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = history.series.since(job_id, max_points=10_000)
    assert sum(point.num_steps for point in points) == len(lines)
    assert points[-1].last_step == lines[-1]["step"] == found.last_step
