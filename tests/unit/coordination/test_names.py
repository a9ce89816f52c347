import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination import names


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True))
def test_a_job_id_is_valid_whatever_the_jobs_name(name):
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", names.new_job_id(name))


def test_two_runs_of_one_job_have_different_ids():
    first, second = names.new_job_id("pretrain"), names.new_job_id("pretrain")
    assert first != second
    assert first.startswith("pretrain-")


def test_a_coordinator_is_found_by_its_name_and_nothing_else_is():
    assert names.job_of_coordinator(names.coordinator_name("job-a")) == "job-a"
    assert names.job_of_coordinator(names.worker_name("job-a", "slot0-1")) is None
    assert names.job_of_coordinator(names.keeper_name("job-a", "node")) is None


def test_no_two_actors_of_a_run_share_a_name():
    own = [
        names.coordinator_name("j"),
        names.worker_name("j", "x"),
        names.keeper_name("j", "x"),
        names.placement_group_name("j"),
    ]
    assert len(set(own)) == len(own)


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    assert names.home() == tmp_path
    monkeypatch.delenv("TRAINFLOW_HOME")
    assert names.home() == Path.home() / ".trainflow"


def test_stamps_of_two_nodes_on_one_machine_lie_apart():
    assert names.stamp_directory("j", "a") != names.stamp_directory("j", "b")
