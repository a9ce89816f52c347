"""What is marked in Grafana of a run."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.jobs import make_job
from tests.testbed.grafana_server import EDITOR, VIEWER, GrafanaServer, serving_grafana
from tests.unit.coordination.fakes import FakeClock
from trainflow.config.webhook import GrafanaConfig
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.grafana_model import describe_dashboard

TOLD_AT_S = FakeClock().unix_s()
RECOVERED = {
    "steps_lost": 0,
    "noticed_at_s": TOLD_AT_S - 1.5,
    "asked_at_s": TOLD_AT_S - 1.4,
    "begun_at_s": TOLD_AT_S - 1.2,
    "healed_at_s": TOLD_AT_S - 700.8,  # of clocks that are behind, and ahead
    "committed_at_s": TOLD_AT_S + 900.0,
}


@pytest.fixture
def server() -> Iterator[GrafanaServer]:
    with serving_grafana("/grafana") as server:
        yield server


def run_with_a_loss(folder: Path, url: str, token: str) -> RunRecord:
    (folder / "token").write_text(token)
    record = RunRecord(folder / "run", FakeClock())
    job = make_job()
    grafana = GrafanaConfig(url=url, token_file=str(folder / "token"))
    monitoring = job.monitoring.model_copy(update={"grafana": grafana})
    job = job.model_copy(update={"monitoring": monitoring})
    monitor = RunMonitor("lm-abc234", job, record, FakeClock())
    record.add_event("failure", "lost slot1-1.1 (rank 1): its actor exited")
    record.add_event("recovered", "in 1.5 s", **RECOVERED)
    record.add_event("evaluated", "heldout", step=1, name="heldout", value=1.0)
    monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close(RunState.SUCCEEDED))
    return record


def test_failures_and_recoveries_are_marked(server: GrafanaServer, tmp_path: Path):
    record = run_with_a_loss(tmp_path, f"{server.url}/", EDITOR)
    failure, recovery = server.annotations
    at_ms = round(record.events_since(0)[0]["at_s"] * 1000)
    assert failure == {
        "time": at_ms,
        "tags": ["trainflow", "failure", "lm-abc234"],
        "text": "lm-abc234: lost slot1-1.1 (rank 1): its actor exited",
    }
    assert (recovery["time"], recovery["timeEnd"]) == (at_ms - 1500, at_ms), "by one clock"
    assert recovery["tags"] == ["trainflow", "recovered", "lm-abc234"]


def test_a_grafana_that_refuses_is_told_of_at_the_end(server: GrafanaServer, tmp_path: Path):
    record = run_with_a_loss(tmp_path, server.url, VIEWER)
    (failed,) = [e for e in record.events_since(0) if e["kind"] == "post_failed"]
    assert failed["text"] == "the grafana was not told of an event: 127.0.0.1 answered 403"
    (incomplete,) = [e for e in record.events_since(0) if e["kind"] == "posts_incomplete"]
    assert incomplete["data"] == {"receiver": "grafana", "num_dropped": 2}


@pytest.mark.parametrize(("job", "is_its_own"), [("lm-abc234", True), ("lm-xyz765", False)])
def test_what_is_marked_is_drawn_where_that_job_is_looked_at(
    server: GrafanaServer, tmp_path: Path, job: str, *, is_its_own: bool
):
    run_with_a_loss(tmp_path, server.url, EDITOR)
    for dashboard in DASHBOARDS:
        drawn = describe_dashboard(dashboard)["annotations"]["list"]
        asked = [{tag.replace("$job", job) for tag in each["target"]["tags"]} for each in drawn]
        for mark in server.annotations:
            is_drawn = any(tags <= set(mark["tags"]) for tags in asked)
            assert is_drawn == (is_its_own or dashboard.may_show_all)
