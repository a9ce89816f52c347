"""A rank that is slower than the others is named, and goes to a spare if the job says so."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.scraping import scrape
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring import metrics

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.soak
def test_a_rank_whose_microbatches_take_longer_is_named_until_they_do_not(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    run = RunUnderTest.start(
        cluster, tmp_path, spares=0, max_steps=5000, sleep_s=0.04, slow_rank=2, slow_s=0.08
    )
    told = run.wait(lambda s: bool(events_of(s, "straggler")))
    member = run.members()[2]
    (event,) = events_of(told, "straggler")
    (slow,) = event["data"]["stragglers"]
    assert slow["rank"] == 2
    assert (slow["worker_id"], slow["node_id"]) == (member["worker_id"], member["node_id"])
    assert slow["ratio"] > 1.5
    assert [each["worker_id"] for each in told["stragglers"]] == [member["worker_id"]]
    where = {"job": run.run.job_id, "host": member["host"]}
    name = metrics.STRAGGLER.shown_name
    wait_until(lambda: scrape(name, **where) == slow["ratio"], lambda: f"no {name} of {where}")
    (tmp_path / "even").touch()
    over = run.wait(lambda s: bool(events_of(s, "straggler_over")))
    (end,) = events_of(over, "straggler_over")
    assert end["data"] == {"worker": member["worker_id"], "left": False}
    assert over["stragglers"] == []
    assert not events_of(over, "failure")
    run.run.stop()
    assert run.finish()["state"] == "stopped"


def test_a_stragglers_rank_goes_to_a_spare_between_two_steps(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    run = RunUnderTest.start(
        cluster,
        tmp_path,
        spares=1,
        max_steps=250,
        sleep_s=0.04,
        slow_rank=2,
        failures={"replace_stragglers": True},
    )
    run.wait_training(step=1)
    before = run.pids()
    status = run.wait(lambda s: bool(events_of(s, "straggler_over")))
    after = run.pids()
    assert (after[0], after[1]) == (before[0], before[1]), "a survivor lost its process"
    assert after[2] != before[2]
    (relieved,) = events_of(status, "straggler_relieved")
    assert relieved["data"]["rank"] == 2
    (end,) = events_of(status, "straggler_over")
    assert end["data"] == {"worker": relieved["data"]["worker_id"], "left": True}
    status = run.finish()
    assert status["state"] == "succeeded"
    assert not events_of(status, "failure")
    assert run.used_samples() == run.expected_samples()
    assert len(run.final_digests()) == 1
    retried = [step["step"] for step in status["steps"]]
    assert retried == sorted(set(retried)), "a step was done twice"
