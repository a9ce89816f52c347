"""Checkpoints to and from the formats of others, from the command line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.checkpointing.small_job import STEP, Args, all_files, damage, make_job, save
from tests.unit.cli.conftest import CallMain
from trainflow.checkpointing.store import CheckpointStore


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> CheckpointStore:
    store = CheckpointStore(str(tmp_path_factory.mktemp("saved") / "store"))
    save(store, make_job(max_steps=STEP + 10))
    return store


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_model_goes_out_and_comes_back(
    saved: CheckpointStore,
    tmp_path: Path,
    call_main: CallMain,
    capsys,
    monkeypatch: pytest.MonkeyPatch,
):
    out, job = tmp_path / "out", tmp_path / "job.yaml"
    call = ("checkpoints", "export", saved.url, "--to", out, "--format", "safetensors")
    assert call_main(*call) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"step {STEP}: 10 tensors, ")
    assert "frozen tensors, written as the training function makes them: 1" in said.err
    assert load_file(out / "model.safetensors")["brief"].dtype is torch.bfloat16
    settings = make_job().model_dump(mode="json", exclude_defaults=True)
    settings |= {"checkpoint": {"every_steps": 4}}  # whose folder comes with the command
    job.write_text(json.dumps(settings))  # JSON is YAML
    other = tmp_path / "other"
    call = ("checkpoints", "import", out, "--to", other, "--format", "safetensors", "--job", job)
    capsys.readouterr()
    assert call_main(*call) == 2
    assert "checkpoint.every_steps: got 4" in capsys.readouterr().err
    monkeypatch.setenv("TRAINFLOW__CHECKPOINT__URL", str(other))
    assert call_main(*call) == 0
    assert capsys.readouterr().out.startswith("step 0: ")
    store = CheckpointStore(str(other))
    assert store.committed_steps() == [0]
    assert store.read_manifest(0).config["args"] == Args().model_dump()
    assert call_main(*call) == 6
    assert "a checkpoint of step 0 there" in capsys.readouterr().err
    assert call_main(*call, "--step", "3", "--set", "training.seed=77") == 0
    assert store.read_manifest(3).config["training"]["seed"] == 77
    assert call_main(*call, "--step", "4", "--set", "training.no_such=1") == 2
    assert "training.no_such" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_state_goes_out_and_comes_back(
    saved: CheckpointStore, tmp_path: Path, call_main: CallMain, capsys
):
    out, other = tmp_path / "out", tmp_path / "other"
    call = ("checkpoints", "export", saved.url, str(STEP), "--to", out, "--format", "dcp")
    assert call_main(*call) == 0
    assert call_main(*call) == 6
    assert "--force" in capsys.readouterr().err
    assert call_main(*call, "--force") == 0
    assert sorted(path.name for path in out.iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "trainflow.json",
    ]
    assert call_main("checkpoints", "import", out, "--to", other, "--format", "dcp") == 0
    assert f"step {STEP}: 22 tensors" in capsys.readouterr().out
    assert all_files(other) == all_files(Path(saved.url))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_a_damaged_checkpoint_leaves_nothing(
    tmp_path: Path, call_main: CallMain, capsys, form: str
):
    store = CheckpointStore(str(tmp_path / "store"))
    damage(store, save(store, make_job()), "/models/model/embed.weight")
    call = ("checkpoints", "export", store.url, "--to", tmp_path / "out", "--format", form)
    assert call_main(*call) == 1
    assert "hash to its name; the file is damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(
    "case",
    [
        (("7", "--to", "x", "--format", "dcp"), 3, "got step 7, expected one of those"),
        (("--to", "s3://bucket/x", "--format", "dcp"), 2, "expected a folder of this machine"),
        (("--to", "", "--format", "dcp"), 2, "got ''"),
        (("--to", "x", "--format", "dcp", "--model", "m"), 2, "a dcp export holds all"),
        (("--to", "x", "--format", "safetensors", "--model", "m"), 2, "--model: got 'm'"),
        (("--to", "x", "--format", "pickle"), 2, "'pickle' is not one of"),
        (("--to", __file__, "--format", "dcp"), 2, "which is a file"),
        (("--to", Path(__file__).parent, "--format", "dcp", "--force"), 2, "nothing shows to be"),
        (("--to", "~nobody-of-that-name/x", "--format", "dcp"), 2, "whose home isn't known"),
    ],
)
def test_what_can_not_be_exported_is_said(
    saved: CheckpointStore, elsewhere: Path, call_main: CallMain, capsys, case
):
    arguments, code, said = case
    assert call_main("checkpoints", "export", saved.url, *arguments) == code
    assert said in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []


def test_a_home_is_meant_by_a_tilde(
    saved: CheckpointStore,
    tmp_path: Path,
    elsewhere: Path,
    call_main: CallMain,
    capsys,
    monkeypatch,
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "x").mkdir(parents=True)
    (tmp_path / "home" / "x" / "notes.txt").touch()
    call = ("checkpoints", "export", saved.url, "--to", "~/x", "--format", "dcp")
    assert call_main(*call) == 6
    assert f"{tmp_path}/home/x: got a folder that holds notes.txt" in capsys.readouterr().err
    call = ("checkpoints", "import", "~/x", "--to", "~/y", "--format", "dcp")
    assert call_main(*call) == 2
    assert f"{tmp_path}/home/x: got no folder that TrainFlow has" in capsys.readouterr().err
    assert [path.name for path in elsewhere.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "--format", "dcp"), "/nowhere, which isn't there"),
        (("", "--format", "dcp"), "got ''"),
        ((".", "--format", "safetensors"), "--job: got nothing, expected a job file"),
        ((".", "--format", "dcp", "--step", "3"), "--step: got 3 without --job"),
        ((".", "--format", "dcp", "--set", "name=x"), "--set: got 'name=x' without --job"),
        ((".", "--format", "dcp", "--job", "none.yaml"), "none.yaml"),
        (
            (".", "--format", "safetensors", "--job", "none.yaml", "--step", str(10**12)),
            "--step: got 1000000000000, expected at most 999999999999",
        ),
    ],
)
def test_what_can_not_be_imported_is_said(
    elsewhere: Path, call_main: CallMain, capsys, arguments, said
):
    assert call_main("checkpoints", "import", *arguments, "--to", "store") == 2
    assert said in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []
