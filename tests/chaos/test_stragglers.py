"""A rank that is slower than the others is named, and nothing else happens to it."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


def test_a_rank_whose_microbatches_take_longer_is_named_until_they_do_not(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    run = RunUnderTest.start(
        cluster, tmp_path, max_steps=5000, sleep_s=0.04, slow_rank=2, slow_s=0.08
    )
    told = run.wait(lambda s: bool(events_of(s, "straggler")))
    member = run.members()[2]
    (event,) = events_of(told, "straggler")
    (slow,) = event["data"]["stragglers"]
    assert slow["rank"] == 2
    assert (slow["worker_id"], slow["node_id"]) == (member["worker_id"], member["node_id"])
    assert slow["ratio"] > 1.5
    assert [each["worker_id"] for each in told["stragglers"]] == [member["worker_id"]]
    (tmp_path / "even").touch()
    over = run.wait(lambda s: bool(events_of(s, "straggler_over")))
    (end,) = events_of(over, "straggler_over")
    assert end["data"] == {"worker": member["worker_id"], "left": False}
    assert over["stragglers"] == []
    assert not events_of(over, "failure")
    run.run.stop()
    assert run.finish()["state"] == "stopped"
