"""Steps of a real run are recorded while it trains, and what is left of it where a rank dies."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.profile_list import Profile, TraceState, list_profiles
from trainflow.errors import ConfigError, ConflictError

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


def newest(status: dict[str, Any]) -> Profile:
    return list_profiles(status["events"])[-1]


def names_in(status: dict[str, Any], file: str) -> list[str]:
    data = gzip.decompress((Path(status["directory"]) / file).read_bytes())
    return [str(event.get("name")) for event in json.loads(data)["traceEvents"]]


@pytest.mark.soak
def test_ranks_record_the_same_steps_and_the_run_is_the_same(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
):
    run = RunUnderTest.start(cluster, tmp_path, spares=0, sleep_s=0.2)
    run.wait_training(step=10)
    with pytest.raises(ConfigError, match="ranks: got 3, expected 0 to 2"):
        run.run.profile(3, [3])
    asked = run.run.profile(3, [0, 2])
    assert [trace.rank for trace in asked.traces] == [0, 2]
    with pytest.raises(ConflictError, match="profile 1 is recorded"):
        run.run.profile(3, [1])
    status = run.wait(lambda status: newest(status).is_over)
    steps = range(asked.first_step, asked.first_step + 3)
    for trace in newest(status).traces:
        assert (trace.state, trace.trouble) == (TraceState.WRITTEN, "")
        assert (trace.first_step, trace.last_step) == (steps[0], steps[-1])
        names = names_in(status, trace.file)
        assert [name for name in names if name.startswith("step ")] == [f"step {n}" for n in steps]
        assert "aten::linear" in names
    status = run.finish()
    assert status["state"] == "succeeded"
    assert events_of(status, "failure") == []
    assert run.final_digests() == {undisturbed}


@pytest.mark.soak
def test_a_rank_that_dies_meanwhile_has_none_and_others_have_what_they_recorded(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
):
    run = RunUnderTest.start(cluster, tmp_path, spares=1, sleep_s=0.2)
    run.wait_training(step=5, spares=1)
    asked = run.run.profile(20, [0, 1])
    run.wait_training(step=asked.first_step + 2)
    run.kill(1)
    status = run.wait(lambda status: newest(status).is_over)
    survivor, lost = newest(status).traces
    assert (survivor.state, survivor.trouble) == (TraceState.WRITTEN, "the epoch ended")
    assert (lost.state, lost.trouble) == (TraceState.FAILED, "its worker is no member any more")
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}
