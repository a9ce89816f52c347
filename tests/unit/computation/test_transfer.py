"""Out of a checkpoint, into the formats of others, and back."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from tests.full_disk import room_for
from tests.unit.checkpointing.small_job import (
    STEP,
    Args,
    Net,
    all_files,
    damage,
    make_job,
    save,
    trained_state,
)
from trainflow.checkpointing import safetensors_export
from trainflow.checkpointing.export_folder import fresh_folder
from trainflow.checkpointing.safetensors_export import ExportOptions, export_safetensors
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.computation import model_description
from trainflow.computation.checkpoint_import import (
    ImportRequest,
    find_prefix,
    import_checkpoint,
)
from trainflow.computation.dcp_export import export_dcp
from trainflow.computation.drill import drill
from trainflow.errors import (
    CheckpointConflictError,
    CheckpointError,
    ConfigError,
    ConflictError,
    StateError,
    StoreError,
)

WEIGHT = "/models/model/embed.weight"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(str(tmp_path / "store"))
    save(store, make_job())
    return store


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe models here: a process of its own costs seconds; the command line's tests do."""

    def describe(_: str, request: dict[str, Any]) -> Any:
        request = request | {"frozen": Path(request["frozen"])}
        return json.loads(json.dumps(model_description.describe_model(**request)))

    monkeypatch.setattr(safetensors_export, "run_with_torch", describe)


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    """What the saved model's ``state_dict`` was."""
    with trained_state(make_job()) as state:
        module = state.models["model"].module
        return {name: t.clone() for name, t in module.state_dict().items()}


class TestSafetensors:
    def test_a_models_state_dict_is_loaded_again(self, store: CheckpointStore, tmp_path, trained):
        done = export_safetensors(store, STEP, ExportOptions(tmp_path / "out"))
        loaded = load_file(tmp_path / "out" / "model.safetensors")
        assert loaded.keys() == trained.keys() - {"head.weight"}, "tied: written once"
        assert all(torch.equal(t, trained[name]) for name, t in loaded.items())
        assert all(t.dtype == trained[name].dtype for name, t in loaded.items())
        assert done.files == ("model.safetensors",)
        assert done.num_bytes == sum(t.nbytes for t in loaded.values())
        assert done.notes == (
            "frozen tensors, written as the training function makes them: 1",
            "config.json is not written: the model is no transformers model",
        )
        with torch.no_grad():
            net = Net(Args())
            assert net.load_state_dict(loaded, strict=False).missing_keys == ["head.weight"]

    def test_several_files_hold_it_too(self, store: CheckpointStore, tmp_path, trained):
        options = ExportOptions(tmp_path / "out", max_file_bytes=100)
        done = export_safetensors(store, STEP, options)
        assert done.files[-1] == "model.safetensors.index.json"
        parts = [load_file(tmp_path / "out" / name) for name in done.files[:-1]]
        loaded = {name: t for part in parts for name, t in part.items()}
        assert all(torch.equal(t, trained[name]) for name, t in loaded.items())

    def test_without_the_job_what_is_saved_is_written(self, store: CheckpointStore, tmp_path):
        options = ExportOptions(tmp_path / "out", build=False)
        assert export_safetensors(store, STEP, options).notes == ("config.json is not written",)
        loaded = load_file(tmp_path / "out" / "model.safetensors")
        assert "codes" in loaded
        assert "positions" not in loaded, "it is no state of the model"

    @pytest.mark.parametrize(
        ("setting", "said"), [("raises", "model.bin"), ("width", "differ from")]
    )
    def test_a_model_that_can_not_be_built_is_said(self, store, tmp_path, setting: str, said: str):
        manifest = store.read_manifest(STEP)
        store.remove_marker(STEP)
        config = make_job(**{setting: 9 if setting == "width" else True}).model_dump(mode="json")
        store.commit(replace(manifest, config=config, attempt="x"))
        (note,) = export_safetensors(store, STEP, ExportOptions(tmp_path / "out")).notes
        assert note.startswith("config.json is not written, since the model can't be built here")
        assert said in note
        assert load_file(tmp_path / "out" / "model.safetensors")["embed.weight"].shape == (7, 12)

    def test_a_damaged_chunk_writes_nothing(self, store: CheckpointStore, tmp_path):
        damage(store, store.read_manifest(STEP), WEIGHT)
        with pytest.raises(CheckpointError, match=r"expected \d+ that hash to its name"):
            export_safetensors(store, STEP, ExportOptions(tmp_path / "out"))
        assert [path.name for path in tmp_path.iterdir()] == ["store"]

    def test_a_full_disk_writes_nothing(self, store: CheckpointStore, tmp_path):
        options = ExportOptions(tmp_path / "out", build=False)
        with room_for(300), pytest.raises(CheckpointError, match="with room; nothing was left"):
            export_safetensors(store, STEP, options)
        assert [path.name for path in tmp_path.iterdir()] == ["store"]

    def test_what_is_there_is_not_replaced_unasked(self, store: CheckpointStore, tmp_path):
        export_safetensors(store, STEP, ExportOptions(tmp_path / "out", build=False))
        with pytest.raises(ConflictError, match="--force"):
            export_safetensors(store, STEP, ExportOptions(tmp_path / "out", build=False))
        export_safetensors(store, STEP, ExportOptions(tmp_path / "out", build=False, replace=True))

    def test_a_model_that_is_not_there_is_refused(self, store: CheckpointStore, tmp_path):
        with pytest.raises(ConfigError, match=r"--model: got 'other'.*in the checkpoint: model"):
            export_safetensors(store, STEP, ExportOptions(tmp_path / "out", "other"))

    def test_a_store_that_does_not_answer_is_no_reason_to_write_less(
        self, store: CheckpointStore, tmp_path, monkeypatch
    ):
        def fail(*_: object) -> None:
            raise StoreError("gone")

        monkeypatch.setattr(safetensors_export, "run_with_torch", fail)
        with pytest.raises(StoreError):
            export_safetensors(store, STEP, ExportOptions(tmp_path / "out"))


class TestDcp:
    @pytest.fixture
    def folder(self, store: CheckpointStore, tmp_path: Path) -> Path:
        with fresh_folder(tmp_path / "dcp", replace=False) as folder:
            export_dcp(store.url, STEP, folder)
        return tmp_path / "dcp"

    def test_torch_loads_model_and_optimizer(self, folder: Path):
        with trained_state(make_job()) as trained, trained_state(make_job(width=12)) as other:
            model, optimizer = other.models["model"].module, other.models["model"].optimizer
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.detach().zero_()
            wanted = {
                "models": {"model": other.models["model"].tensors()},
                "optimizers": {"model": {"state": optimizer.state_dict()["state"]}},
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(wanted, checkpoint_id=folder, no_dist=True)
            for name, tensor in trained.models["model"].tensors().items():
                assert torch.equal(wanted["models"]["model"][name], tensor)
            for position, moments in (
                trained.models["model"].optimizer.state_dict()["state"].items()
            ):
                for key, tensor in moments.items():
                    found = wanted["optimizers"]["model"]["state"][position][key]
                    assert torch.equal(found, tensor)

    def test_there_and_back_is_the_same_to_the_bit(self, store, folder: Path, tmp_path):
        other = CheckpointStore(str(tmp_path / "other"))
        done = import_checkpoint(request_for(folder, other))
        manifest = store.read_manifest(STEP)
        assert other.read_manifest(STEP) == manifest
        assert all_files(Path(other.url)) == all_files(Path(store.url))
        assert done["step"] == STEP
        assert drill(other.url, STEP)["flaws"] == []

    def test_what_is_damaged_in_place_is_written_anew(self, store, folder: Path, tmp_path):
        other = CheckpointStore(str(tmp_path / "other"))
        import_checkpoint(request_for(folder, other))
        damage(other, other.read_manifest(STEP), WEIGHT)
        import_checkpoint(request_for(folder, other))
        assert not verify(other, STEP).flaws
        assert all_files(Path(other.url)) == all_files(Path(store.url))

    def test_a_step_that_is_there_is_not_replaced(self, store, folder: Path):
        manifest = store.read_manifest(STEP)
        store.remove_marker(STEP)
        store.commit(replace(manifest, attempt="another"))
        with pytest.raises(CheckpointConflictError):
            import_checkpoint(request_for(folder, store))

    def test_a_changed_export_is_refused(self, folder: Path, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = {name: torch.zeros(7, 12) for name in ["models.model.embed.weight"]}
            manifest = (folder / "trainflow.json").read_bytes()
            dcp.save(state, checkpoint_id=folder, no_dist=True)
            (folder / "trainflow.json").write_bytes(manifest)
        other = CheckpointStore(str(tmp_path / "other"))
        with pytest.raises(CheckpointError, match=r"got other tensors in \.metadata than"):
            import_checkpoint(request_for(folder, other))
        assert other.committed_steps() == []

    def test_other_bytes_than_were_exported_are_refused(self, folder: Path, tmp_path):
        # Without compression or a checksum that torch would look at.
        data = next(folder.glob("*.distcp"))
        with trained_state(make_job()) as state:
            needle = state.models["model"].tensors()["embed.weight"].numpy().tobytes()
        content = data.read_bytes()
        assert content.count(needle) == 1
        data.write_bytes(content.replace(needle, bytes(len(needle))))
        other = CheckpointStore(str(tmp_path / "other"))
        with pytest.raises(CheckpointError, match=r"other bytes than were exported|can't be read"):
            import_checkpoint(request_for(folder, other))
        assert other.committed_steps() == []

    def test_a_forged_manifest_is_refused(self, folder: Path, tmp_path):
        document = json.loads((folder / "trainflow.json").read_text())
        document["tensors"][1]["shape"] = [2**40, 12]
        (folder / "trainflow.json").write_text(json.dumps(document))
        with pytest.raises(CheckpointError, match="damaged or forged"):
            import_checkpoint(request_for(folder, CheckpointStore(str(tmp_path / "other"))))

    def test_a_damaged_chunk_writes_nothing(self, store, tmp_path):
        damage(store, store.read_manifest(STEP), WEIGHT)
        (tmp_path / "out").mkdir()
        with pytest.raises(CheckpointError, match=r"expected \d+ that hash to its name"):
            export_dcp(store.url, STEP, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_full_disk_is_said(self, store, tmp_path):
        (tmp_path / "out").mkdir()
        with room_for(20_000), pytest.raises(CheckpointError, match="expected one with room"):
            export_dcp(store.url, STEP, tmp_path / "out")

    def test_another_folder_needs_a_job(self, tmp_path):
        (tmp_path / "dcp").mkdir()
        with pytest.raises(ConfigError, match="expected one, or --job"):
            import_checkpoint(request_for(tmp_path / "dcp", CheckpointStore(str(tmp_path / "x"))))

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "dcp").write_text("no folder")
        with pytest.raises(ConfigError, match=r"dcp: got no folder that TrainFlow has exported"):
            import_checkpoint(request_for(tmp_path / "dcp", CheckpointStore(str(tmp_path / "x"))))


class TestWeights:
    @pytest.fixture
    def other(self, tmp_path: Path) -> CheckpointStore:
        return CheckpointStore(str(tmp_path / "other"))

    @pytest.mark.parametrize("form", ["file", "folder", "several files"])
    def test_safetensors_become_the_state_that_a_job_begins_with(
        self, store, other: CheckpointStore, tmp_path, form: str
    ):
        options = ExportOptions(
            tmp_path / "out", max_file_bytes=100 if form == "several files" else 10**6
        )
        export_safetensors(store, STEP, options)
        path = tmp_path / "out" / "model.safetensors" if form == "file" else tmp_path / "out"
        done = import_checkpoint(request_for(path, other, make_job(max_steps=9)))
        assert (done["step"], done["notes"]) == (0, [])
        assert not verify(other, 0).flaws
        assert drill(other.url, 0)["flaws"] == []
        manifest, before = other.read_manifest(0), store.read_manifest(STEP)
        chunks = {p: [s.chunks for s in t.shards] for p, t in manifest.tensors.items()}
        for path, entry in before.tensors.items():
            if path.startswith("/models/"):
                assert chunks[path] == [shard.chunks for shard in entry.shards], path
        assert not [path for path in manifest.tensors if path.startswith("/optimizers")]
        assert manifest.config["training"]["max_steps"] == 9

    def test_what_is_damaged_in_place_is_written_anew(self, other, trained, tmp_path):
        save_file({n: t for n, t in trained.items() if n != "head.weight"}, tmp_path / "w")
        request = request_for(tmp_path / "w", other, make_job())
        import_checkpoint(request)
        damage(other, other.read_manifest(0), WEIGHT)
        import_checkpoint(replace(request, step=3))
        assert not verify(other, 3).flaws

    def test_dcp_of_others_is_taken_by_the_models_names(self, other, trained, tmp_path):
        state = {"model": trained, "optimizer": {"lr": 0.1, "embed": torch.zeros(3)}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
        done = import_checkpoint(request_for(tmp_path / "dcp", other, make_job(), step=5))
        assert done["step"] == 5
        assert done["notes"] == [
            "entries left out, since they are no weights of the model (whose names begin with "
            "'model.' there): 2"
        ]

    def test_weights_of_another_model_are_refused(self, other, trained, tmp_path):
        del trained["head.weight"]
        save_file(trained, tmp_path / "w.safetensors")
        request = request_for(tmp_path / "w.safetensors", other, make_job(width=13))
        with pytest.raises(StateError, match=r"embed.weight: got \(7, 12\)"):
            import_checkpoint(request)
        assert other.committed_steps() == []

    def test_a_model_that_the_job_lacks_is_refused(self, other, trained, tmp_path):
        save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
        request = request_for(tmp_path / "w.safetensors", other, make_job(), model="critic")
        with pytest.raises(ConfigError, match="--model: got 'critic', expected one of model"):
            import_checkpoint(request)

    @pytest.mark.parametrize("content", [b"", b"no safetensors", (2**62).to_bytes(8, "little")])
    def test_a_file_of_another_format_is_refused(self, other, tmp_path, content: bytes):
        (tmp_path / "w.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match="got no safetensors file"):
            import_checkpoint(request_for(tmp_path / "w.safetensors", other, make_job()))

    @pytest.mark.parametrize(
        ("index", "said"),
        [("{", "no index of weights"), ('{"weight_map": {"a": "../x"}}', "a file beside it")],
    )
    def test_a_damaged_or_forged_index_is_refused(self, other, tmp_path, index: str, said: str):
        (tmp_path / "w").mkdir()
        (tmp_path / "w" / "model.safetensors.index.json").write_text(index)
        with pytest.raises(CheckpointError, match=said):
            import_checkpoint(request_for(tmp_path / "w", other, make_job()))


def request_for(
    path: Path, store: CheckpointStore, job: Any = None, **changes: Any
) -> ImportRequest:
    form = "safetensors" if "dcp" not in path.name else "dcp"
    given = None if job is None else job.model_dump_json()
    return replace(ImportRequest(str(path), store.url, form, 0, given, None), **changes)


@pytest.mark.parametrize(
    ("found", "prefix"),
    [
        ({"a.weight", "b"}, ""),
        ({"model.a.weight", "optimizer.a.weight.exp_avg"}, "model."),
        ({"net.module.a.weight"}, "net.module."),
        ({"other"}, ""),
    ],
)
def test_what_stands_before_the_models_names_is_found(found: set[str], prefix: str):
    assert find_prefix(found, {"a.weight"}) == prefix


def test_two_models_of_the_same_names_are_refused():
    with pytest.raises(ConfigError, match=r"ema\., model\."):
        find_prefix({"ema.a.weight", "model.a.weight"}, {"a.weight"})
