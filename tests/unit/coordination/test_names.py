import os
import re
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("bad", ["", "-a", "A", "a/b", "..", "a" * 64, "a\n", "a\x00", "\u0661"])
def test_what_could_leave_a_folder_is_no_job_id(bad: str):
    assert not names.is_job_id(bad)
    assert names.parse_submission_id(f"{bad}-a1") is None


@given(st.from_regex(names.JOB_ID_PATTERN.strip("^$"), fullmatch=True), st.integers(1, 10**9 - 1))
def test_an_attempt_is_found_by_its_submission_id(job_id: str, attempt: int):
    assert names.is_job_id(job_id)
    assert names.parse_submission_id(names.submission_id(job_id, attempt)) == (job_id, attempt)


@pytest.mark.parametrize("other", ["raysubmit_4LamXRuQpYdSMg7J", "job-a", "job-a0", "job-ax"])
def test_a_submission_of_something_else_is_no_attempt(other: str):
    assert names.parse_submission_id(other) is None


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


def test_each_user_of_a_machine_has_a_folder_in_its_memory(monkeypatch: pytest.MonkeyPatch):
    ours = names.memory_directory()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert names.memory_directory() != ours
    assert names.stamp_directory("j", "a").is_relative_to(names.memory_directory())
