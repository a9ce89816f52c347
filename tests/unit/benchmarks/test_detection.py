"""Orders that ranks take, events that tell of a fault, and what is made of the times."""

from pathlib import Path

import pytest

from benchmarks.detection import Found, Told
from benchmarks.detection_faults import Fault, Victim, list_faults
from benchmarks.detection_orders import HANGS, give, read_time, take
from trainflow.coordination.chaos.net_hosts import NetHosts


@pytest.fixture
def victim() -> Victim:
    return Victim(1, pid=7, host=2, hosts=NetHosts(5), names=("slot1-1.1", "10.78.0.13"))


@pytest.fixture
def faults(tmp_path: Path) -> dict[str, Fault]:
    return {each.name: each for each in list_faults(tmp_path, tmp_path, tmp_path)}


def test_an_order_is_taken_once_by_the_rank_that_it_is_for(tmp_path: Path):
    done = give(tmp_path, HANGS, 1)
    assert not take(tmp_path, HANGS, 0)
    assert read_time(done) is None
    assert take(tmp_path, HANGS, 1)
    assert read_time(done) is not None
    assert not take(tmp_path, HANGS, 1)


def test_an_order_that_is_given_again_has_not_been_done(tmp_path: Path):
    give(tmp_path, HANGS, 1)
    take(tmp_path, HANGS, 1)
    assert read_time(give(tmp_path, HANGS, 1)) is None


def test_data_is_held_back_as_long_as_the_fault_lasts(
    tmp_path: Path, faults: dict[str, Fault], victim: Victim
):
    with faults["data_stalls"].falls(victim) as fell:
        assert [path.name for path in tmp_path.iterdir()] == ["data_stalls"]
        assert fell() is not None
    assert not list(tmp_path.iterdir())


def test_an_event_tells_of_a_fault_if_it_names_the_victim(faults: dict[str, Fault], victim: Victim):
    told = {"kind": "hang", "text": "slot1-1.1: no progress"}
    assert faults["hangs"].tells(told, victim)
    assert not faults["killed"].tells(told, victim), "another kind"
    assert not faults["hangs"].tells(told | {"text": "slot2-1.1: no progress"}, victim)


def test_data_that_comes_to_nobody_names_nobody(faults: dict[str, Fault], victim: Victim):
    assert faults["data_stalls"].tells({"kind": "data_stall", "text": "ranks 0, 1, 2"}, victim)


def test_the_longest_of_all_times_is_told_beside_the_median():
    found = Found({"killed": [Told(1.0, 2.0), Told(3.0, 8.0), Told(2.0, 3.0)]})
    rows = {(row.system, row.metric): row.value for row in found.rows()}
    assert rows == {
        ("killed", "told_s"): 2.0,
        ("killed", "told_at_most_s"): 3.0,
        ("killed", "recovered_s"): 3.0,
        ("killed", "recovered_at_most_s"): 8.0,
    }


def test_what_loses_no_rank_has_no_recovery():
    found = Found(
        {"slow_rank": [Told(40.0)]}, {"healthy": {"hang": [], "failure": ["rank 0", "rank 1"]}}
    )
    rows = {(row.system, row.metric): row.value for row in found.rows()}
    assert ("slow_rank", "recovered_s") not in rows
    assert rows["healthy", "failure_alarms"] == 2
