"""Finding runs and writing what they answer."""

import socket

import pytest

from tests.unit.cli.fakes import FakeCluster, FakeRun, make_event, make_status
from trainflow.cli import cluster_jobs as on_cluster
from trainflow.cli.head import HeadRecord
from trainflow.coordination import driver
from trainflow.errors import ConfigError, JobNotFoundError, UnreachableError


@pytest.mark.usefixtures("home")
def test_an_address_is_given_or_that_of_the_own_head(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UnreachableError, match="--address"):
        on_cluster.find_address(None)
    record = HeadRecord("10.0.0.1:6379", 1, 1.0, "/tmp/tf-x")
    monkeypatch.setattr(on_cluster, "read_head", lambda: record)
    assert on_cluster.find_address(None) == "10.0.0.1:6379"
    assert on_cluster.find_address("10.0.0.2:6379") == "10.0.0.2:6379"


def test_the_only_run_needs_no_name(cluster: FakeCluster):
    cluster.runs["one"] = FakeRun(job_id="one")
    assert on_cluster.choose_run(None).job_id == "one"


def test_of_several_runs_one_is_to_be_named(cluster: FakeCluster):
    cluster.runs |= {"one": FakeRun(job_id="one"), "two": FakeRun(job_id="two")}
    with pytest.raises(ConfigError, match="one, two"):
        on_cluster.choose_run(None)
    assert on_cluster.choose_run("two").job_id == "two"


@pytest.mark.parametrize("job_id", [None, "other"])
@pytest.mark.usefixtures("cluster")
def test_a_run_that_is_not_there_is_not_found(job_id: str | None):
    with pytest.raises(JobNotFoundError):
        on_cluster.choose_run(job_id)


def test_a_run_that_ends_meanwhile_is_left_out_of_the_list(cluster: FakeCluster):
    cluster.runs["gone"] = FakeRun([UnreachableError("gone")])
    cluster.runs["here"] = FakeRun([make_status(job_id="here")])
    assert [run["job_id"] for run in on_cluster.list_runs()] == ["here"]


def test_a_status_shows_figures_and_the_newest_events():
    events = [make_event(n, text=f"number {n}") for n in range(1, 9)]
    lines = on_cluster.format_status(make_status(epoch=None, events=events)).splitlines()
    assert "state         running" in lines
    assert "epoch         -" in lines
    assert [line.split()[-1] for line in lines[-5:]] == ["4", "5", "6", "7", "8"]


def test_a_status_shows_who_straggles():
    slow = [{"rank": 2, "ratio": 3.14}, {"rank": 5, "ratio": 1.5}]
    assert "stragglers    rank 2, 3.1 times; rank 5, 1.5 times" in on_cluster.format_status(
        make_status(stragglers=slow)
    )
    assert "stragglers    -" in on_cluster.format_status(make_status())


def test_a_status_shows_the_links_that_training_waits_for():
    slow = [{"hosts": ["10.0.0.2"]}, {"hosts": ["10.0.0.3", "10.0.0.4"]}]
    assert "slow_network  10.0.0.2; 10.0.0.3 - 10.0.0.4" in on_cluster.format_status(
        make_status(slow_network=slow)
    )
    assert "slow_network  -" in on_cluster.format_status(make_status())


def test_a_status_shows_what_is_odd_about_the_loss():
    odd = [{"anomaly": "loss_drift", "since_step": 640}, {"anomaly": "norm_high", "since_step": 7}]
    assert "anomalies     loss_drift since step 640; norm_high since step 7" in (
        on_cluster.format_status(make_status(anomalies=odd))
    )
    assert "anomalies     -" in on_cluster.format_status(make_status())


def test_a_status_shows_how_much_of_the_time_counts():
    text = on_cluster.format_status(make_status(goodput={"ratio": 0.9312, "seconds": {}}))
    assert "goodput       93.1%" in text
    for goodput in (None, {"ratio": None}):
        assert "goodput       -" in on_cluster.format_status(make_status(goodput=goodput))


def test_a_port_at_which_nothing_listens_is_unreachable_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}.*--address"):
        driver.connect(f"127.0.0.1:{port}")
