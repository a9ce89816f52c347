"""A checkpoint of another version of the format: nobody uses it, and nobody takes it away."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.checkpointing.rewriting import rewrite
from tests.unit.checkpointing.small_job import all_files
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.pruning import plan_prune
from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.retention import RetentionPolicy
from trainflow.checkpointing.sharing import assemble
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine, verify
from trainflow.config.job import JobConfig
from trainflow.errors import CheckpointVersionError

STEPS = [10, 20, 30]
TOLD = "got version 2 of the format, expected 1: another release"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Three checkpoints, each with a tensor of its own."""
    store = CheckpointStore(str(tmp_path / "store"))
    for step in STEPS:
        reports = upload(make_snapshot(35, step), store, 1)
        skeleton, tensors = reports[0].skeleton, assemble(reports)
        config = make_job().model_dump(mode="json")
        manifest = replace(make_manifest(), step=step, skeleton=skeleton, tensors=tensors)
        store.commit(replace(manifest, config=config))
    return store


def job(store: CheckpointStore, resume: object = "auto", url: str | None = None) -> JobConfig:
    checkpoint = {"url": url or store.url, "resume": resume}
    return JobConfig.model_validate(make_job().model_dump(mode="json") | {"checkpoint": checkpoint})


WHO_REMOVES: dict[str, Callable[[CheckpointStore], object]] = {
    "a quarantine": lambda store: quarantine(store, 20),
    "a prune": lambda store: plan_prune(store, RetentionPolicy(keep_last=1), {}),
    "a rewind to before it": lambda store: plan_prune(store, RetentionPolicy(99), {}, after=10),
    "retention that would remove it": lambda store: collect(store, {30}),
    "retention that would keep it": lambda store: collect(store, {20, 30}),
}


@pytest.mark.parametrize("who", WHO_REMOVES)
def test_nobody_takes_it_away(store: CheckpointStore, who: str):
    rewrite(store, 20, version=2)
    before = all_files(Path(store.url))
    with pytest.raises(CheckpointVersionError, match=TOLD):
        WHO_REMOVES[who](store)
    assert all_files(Path(store.url)) == before


def test_it_is_not_taken_for_damaged(store: CheckpointStore):
    rewrite(store, 20, version=2)
    with pytest.raises(CheckpointVersionError, match=TOLD):
        verify(store, 20)
    with pytest.raises(
        CheckpointVersionError, match=r"nothing is removed: manifest .*use that rel"
    ):
        plan_prune(store, RetentionPolicy(), {})


def test_a_run_does_not_go_back_to_an_older_one(store: CheckpointStore, tmp_path: Path):
    rewrite(store, 30, version=2)
    elsewhere = str(tmp_path / "elsewhere")
    for settings in (job(store), job(store, 30), job(store, store.url, url=elsewhere)):
        with pytest.raises(CheckpointVersionError, match=TOLD):
            find_resumable(settings)


def test_nor_past_it_where_the_newest_is_damaged(store: CheckpointStore):
    rewrite(store, 20, version=2)
    assert [each.step for each in find_resumable(job(store))] == STEPS, "it is not needed"
    (Path(store.url) / "manifests" / store.committed_manifest(30)).write_text("{}")
    with pytest.raises(CheckpointVersionError, match=TOLD):
        find_resumable(job(store))
