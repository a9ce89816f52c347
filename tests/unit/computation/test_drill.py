"""A drill sees whether a checkpoint comes back bit for bit, and reads only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.checkpointing.small_job import (
    STEP,
    all_files,
    damage,
    make_job,
    save,
    trained_state,
)
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.drill import drill, find_differences
from trainflow.errors import CheckpointError, TrainingError

WEIGHT = "/models/model/embed.weight"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.mark.parametrize("max_steps", [STEP, STEP + 1])
def test_a_good_checkpoint_passes_and_nothing_is_changed(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_steps: int
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    after = tmp_path / "after-the-steps"
    manifest = save(store, make_job(max_steps, after=str(after)))
    before = all_files(Path(store.url))
    report = drill(store.url, STEP)
    assert report["flaws"] == []
    assert (report["num_tensors"], report["num_bytes"]) == (
        len(manifest.tensors),
        manifest.num_bytes,
    )
    assert 0 < report["restore_s"] < report["total_s"]
    assert all_files(Path(store.url)) == before
    assert not after.exists()
    assert list(scratch.glob("trainflow*")) == []


def test_state_that_does_not_come_back_is_named(store: CheckpointStore):
    save(store, make_job(forgets=False))
    manifest = store.read_manifest(STEP)
    store.remove_marker(STEP)
    config = manifest.config | {"args": {"forgets": True}}
    store.commit(replace(manifest, config=config, attempt="again"))
    flaws = drill(store.url, STEP)["flaws"]
    assert len(flaws) > 1
    assert all("'average'" in flaw or "/registered/average" in flaw for flaw in flaws)


def test_a_damaged_chunk_fails_it(store: CheckpointStore):
    damage(store, save(store, make_job()), WEIGHT)
    with pytest.raises(CheckpointError, match=r"expected \d+ that hash to its name"):
        drill(store.url, STEP)


def test_a_checkpoint_of_another_model_fails_it(store: CheckpointStore):
    manifest = save(store, make_job())
    store.remove_marker(STEP)
    store.commit(replace(manifest, config=make_job(width=13).model_dump(mode="json"), attempt="x"))
    with pytest.raises(CheckpointError, match="is whole, and can't be loaded here"):
        drill(store.url, STEP)


def test_a_training_function_that_raises_is_told(store: CheckpointStore):
    manifest = save(store, make_job())
    store.remove_marker(STEP)
    config = make_job(raises=True).model_dump(mode="json")
    store.commit(replace(manifest, config=config, attempt="x"))
    with pytest.raises(TrainingError, match=r"RuntimeError \(no such file: model\.bin\)"):
        drill(store.url, STEP)


@pytest.mark.parametrize("config", [{}, {"name": "small"}])
def test_settings_of_no_job_are_told(store: CheckpointStore, config: Any):
    manifest = save(store, make_job())
    store.remove_marker(STEP)
    store.commit(replace(manifest, config=config, attempt="x"))
    with pytest.raises(CheckpointError, match="got settings that are no job of this release"):
        drill(store.url, STEP)


def test_every_kind_of_difference_is_seen(store: CheckpointStore):
    manifest, job = save(store, make_job()), make_job()
    with trained_state(job) as state:
        assert list(find_differences(manifest, state.tree())) == []
        state.consumed_samples += 1
        with torch.no_grad():
            state.models["model"].module.get_parameter("norm.bias")[3] += 1
        del state.models["model"].optimizer.param_groups[0]["eps"]
        state.registered["average"].state.load_state_dict({"pair": (torch.zeros(3), 0.75)})
        flaws = "\n".join(find_differences(manifest, state.tree()))
    assert "/'progress'/'consumed_samples': got 161 after the restore, expected 160" in flaws
    assert "/models/model/norm.bias: got bytes that hash to" in flaws
    assert "/'eps': got nothing after the restore, expected 1e-08" in flaws
    assert "/registered/average/pair/0: got float32 (3,) after the restore" in flaws
    assert "/'best': got nothing" in flaws
