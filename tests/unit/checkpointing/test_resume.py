"""A run doesn't begin before checkpoints that are in its folder already."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.store import CheckpointStore
from trainflow.config.job import JobConfig
from trainflow.errors import ConfigError

STEPS = [40, 80, 120]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(str(tmp_path / "store"))
    config = make_job().model_dump(mode="json")
    for step in STEPS:
        store.commit(replace(make_manifest(), step=step, config=config))
    return store


@pytest.fixture
def job(store: CheckpointStore) -> Callable[[object], JobConfig]:
    settings = make_job().model_dump(mode="json")
    return lambda resume: JobConfig.model_validate(
        settings | {"checkpoint": {"url": store.url, "resume": resume}}
    )


def steps_of(job: JobConfig, *made: int) -> list[int]:
    return [stored.step for stored in find_resumable(job, made)]


def test_a_run_from_nothing_needs_an_empty_folder(job):
    with pytest.raises(ConfigError, match=r"got never, .* steps 40, 80, 120, expected none; set"):
        find_resumable(job("never"))


def test_a_run_from_a_step_needs_a_folder_without_later_ones(job, store: CheckpointStore):
    later = r"got 80, .* steps 120, expected none after step 80; .*rewind \S+store 80"
    with pytest.raises(ConfigError, match=later):
        find_resumable(job(80))
    store.remove_marker(120)
    assert steps_of(job(80)) == [40, 80]


def test_what_a_run_has_made_itself_is_no_obstacle(job):
    assert steps_of(job("never"), 40, 80, 120) == []
    assert steps_of(job(80), 120) == [40, 80]


def test_the_newest_may_be_asked_for_by_its_step(job):
    assert steps_of(job(120)) == steps_of(job("auto")) == STEPS


def test_a_refusal_says_what_stays_as_saved_if_it_is_accepted(job):
    altered = job("auto").model_copy(update={"args": {"lr": 0.9}})
    stays = r"accept .* \(but for what .* scheduler, so learning rates too, stay as they were saved"
    with pytest.raises(ConfigError, match=stays):
        find_resumable(altered)
