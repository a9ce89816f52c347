"""The values of a job's environment variables are in nothing that is kept of a run."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.small_job import STEP, all_files, make_job, save
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.cli.conftest import call_main
from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.checkpoint_import import ImportRequest, import_checkpoint
from trainflow.computation.dcp_export import export_dcp
from trainflow.computation.drill import drill
from trainflow.computation.replay import ReplayRequest, replay
from trainflow.config.job import JobConfig
from trainflow.config.masking import kept_settings
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.job_record import JobRecord, write_job_record
from trainflow.coordination.run_record import RunRecord
from trainflow.errors import (
    CheckpointError,
    CheckpointMisfitError,
    ConfigError,
    DataError,
    TrainingError,
)

__all__ = ["call_main"]

SECRET = "hf_0123456789"
NAME = "TRAINFLOW_TEST_TOKEN"


def secret_job(**args: Any) -> JobConfig:
    return make_job(**args).model_copy(update={"runtime_env": {"env_vars": {NAME: SECRET}}})


def assert_kept_without_value(folder: Path) -> None:
    files = all_files(folder).values()
    assert any(NAME.encode() in data for data in files), "which there were is kept"
    assert not [data for data in files if SECRET.encode() in data]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def earlier(tmp_path: Path) -> CheckpointStore:
    """A store with a checkpoint of a release that kept the values."""
    store = CheckpointStore(str(tmp_path / "earlier"))
    save(store, secret_job())
    assert any(SECRET.encode() in data for data in all_files(Path(store.url)).values())
    return store


def test_not_in_a_run_s_checkpoint_nor_in_its_record(store: CheckpointStore, tmp_path: Path):
    job = secret_job()
    job = job.model_copy(
        update={"checkpoint": job.checkpoint.model_copy(update={"url": store.url})}
    )
    record = RunRecord(tmp_path / "run", FakeClock())
    write_job_record(record.directory, JobRecord.of("small-abcdef", job, ()))

    async def act() -> None:
        control = CheckpointControl("small-abcdef", job, record, FakeClock())
        (report,) = upload(make_snapshot(35, 7), store, 1)
        permit = control.ask("node0", report.version, 1).permit
        assert permit is not None
        await control.on_share(report, permit, world_size=1)

    asyncio.run(act())
    assert len(store.committed_steps()) == 1
    assert_kept_without_value(Path(store.url))
    assert_kept_without_value(record.directory)


def test_not_in_an_export_nor_in_what_is_made_of_one(
    earlier: CheckpointStore, store: CheckpointStore, tmp_path: Path
):
    folder = tmp_path / "export"
    folder.mkdir()
    export_dcp(earlier.url, STEP, folder)
    assert_kept_without_value(folder)
    manifest = json.loads((folder / "trainflow.json").read_text())
    manifest["config"]["runtime_env"]["env_vars"][NAME] = SECRET  # as an earlier release wrote it
    (folder / "trainflow.json").write_text(json.dumps(manifest))
    import_checkpoint(ImportRequest(str(folder), store.url, "dcp", 0, None, None))
    assert_kept_without_value(Path(store.url))
    job, weights = secret_job().model_dump_json(), CheckpointStore(str(tmp_path / "weights"))
    import_checkpoint(ImportRequest(str(folder), weights.url, "dcp", 1, job, None))
    assert_kept_without_value(Path(weights.url))


def test_a_secret_among_the_args_is_in_nothing_that_is_imported(
    store: CheckpointStore, tmp_path: Path
):
    job = make_job(token=SECRET).model_dump_json()
    with pytest.raises(ConfigError, match=r"args\.token: got a secret; expected none"):
        import_checkpoint(ImportRequest(str(tmp_path), store.url, "safetensors", 1, job, None))
    assert not Path(store.url).exists() or not all_files(Path(store.url))


@pytest.mark.parametrize("output", ["table", "json"])
def test_not_in_what_is_shown(earlier: CheckpointStore, call_main: Any, capsys: Any, output: str):
    assert call_main("checkpoints", "show", earlier.url, "-o", output) == 0
    said = capsys.readouterr().out
    assert NAME in said
    assert SECRET not in said


def keep(store: CheckpointStore, job: JobConfig) -> None:
    """Save a checkpoint that has a job's settings as a run keeps them."""
    manifest = save(store, make_job())
    store.remove_marker(STEP)
    store.commit(replace(manifest, config=kept_settings(job), attempt="x"))


def test_a_drill_goes_without_them_and_names_what_is_missing_where_that_fails(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(NAME, raising=False)
    keep(store, secret_job())
    assert drill(store.url, STEP)["flaws"] == []
    store.remove_marker(STEP)
    keep(store, secret_job(raises=True))
    told = rf"RuntimeError \(no such.*runtime_env\.env_vars sets {NAME} in a run, .* set it where"
    with pytest.raises(TrainingError, match=told):
        drill(store.url, STEP)
    monkeypatch.setenv(NAME, "of this place")
    with pytest.raises(TrainingError, match="no such file") as caught:
        drill(store.url, STEP)
    assert NAME not in str(caught.value)


def test_a_model_of_another_shape_may_be_for_a_variable_and_damage_is_not(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(NAME, raising=False)
    keep(store, secret_job(width=13))
    with pytest.raises(CheckpointMisfitError, match=f"env_vars sets {NAME} in a run"):
        drill(store.url, STEP)
    chunk = max(Path(store.url).glob("chunks/*/*"), key=lambda path: path.stat().st_size)
    chunk.write_bytes(b"")
    with pytest.raises(CheckpointError, match="hash to its name") as caught:
        drill(store.url, STEP)
    assert NAME not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError(NAME), TrainingError), (DataError("no corpus"), DataError)]
)
def test_a_replay_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
):
    def open_in_vain(*_: object) -> None:
        raise error

    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.setattr("trainflow.computation.replay.open_data_feed", open_in_vain)
    config = kept_settings(secret_job())
    request = ReplayRequest(config, "small-abcdef", 0, 1, str(tmp_path / "meeting"), None, 1)
    with pytest.raises(kind, match=f"env_vars sets {NAME} in a run, .* set it where you run this"):
        replay(request)
