"""A folder is there whole or not at all, and nothing of the user's is lost for it."""

import errno
import json
from pathlib import Path

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.checkpointing.small_job import all_files
from trainflow.checkpointing.export_folder import fresh_folder
from trainflow.checkpointing.manifest import encode_manifest
from trainflow.checkpointing.safetensors_files import (
    TensorSpec,
    read_plain_file,
    write_safetensors,
)
from trainflow.errors import CheckpointError, ConfigError, ConflictError


def write(target: Path, content: str, *, replace: bool = False) -> None:
    with fresh_folder(target, replace=replace) as folder:
        write_weights(folder, content)
        assert not list(target.glob("model*")) or replace, "not before it is whole"


def write_weights(folder: Path, content: str) -> None:
    """Write a file as an export does."""
    spec, data = TensorSpec("t", "uint8", (len(content),)), memoryview(content.encode())
    write_safetensors(folder, "model", [spec], lambda _: [data], max_file_bytes=10**6)


def read(target: Path) -> str:
    return bytes(read_plain_file(target / "model.safetensors")["t"][1]).decode()


def foreign_weights() -> bytes:
    """A file of weights as any other program writes it."""
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    return len(header).to_bytes(8, "little") + header


def test_a_folder_appears_with_all_that_is_in_it(tmp_path: Path):
    write(tmp_path / "a" / "b", "one")
    assert read(tmp_path / "a" / "b") == "one"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_an_empty_folder_is_taken(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "one")
    assert (tmp_path / "empty" / "model.safetensors").exists()


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path):
    write(tmp_path / "x", "one")
    with pytest.raises(ConflictError, match=r"holds model\.safetensors.*--force"):
        write(tmp_path / "x", "other")
    assert read(tmp_path / "x") == "one"
    write(tmp_path / "x", "other", replace=True)
    assert read(tmp_path / "x") == "other"


def test_what_no_export_wrote_is_never_replaced(tmp_path: Path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt, which nothing shows to be of an export"):
        write(tmp_path / "x", "other", replace=True)
    assert (tmp_path / "x" / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="which is a file"):
        write(tmp_path / "x" / "notes.txt", "other", replace=True)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config.json": b"{}"}, "config.json"),
        ({"model.safetensors": foreign_weights(), "config.json": b"{}"}, "model.safetensors"),
        ({"model.safetensors": b""}, "model.safetensors"),
        ({".metadata": b"x", "__0_0.distcp": b"x"}, ".metadata"),
        ({"__0_0.distcp": b"x", "trainflow.json": b'{"format": "other"}'}, "__0_0.distcp"),
        ({"config.json/notes.txt": b"mine"}, "config.json"),
    ],
)
def test_a_name_alone_does_not_make_an_export(tmp_path: Path, files: dict[str, bytes], named: str):
    for name, data in files.items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"holds {named}, which nothing shows"):
        write(tmp_path / "x", "other", replace=True)
    assert all_files(tmp_path / "x") == files


def test_what_lies_beside_an_export_stays(tmp_path: Path):
    write(tmp_path / "x", "one")
    for name, make in (
        ("adapter_model.safetensors", lambda path: path.write_bytes(foreign_weights())),
        ("config.json", lambda path: path.mkdir()),
        ("config.json", lambda path: path.symlink_to(tmp_path / "x" / "model.safetensors")),
        ("trainflow.json", lambda path: path.write_bytes(encode_manifest(make_manifest()))),
    ):
        path = tmp_path / "x" / name
        make(path)
        with pytest.raises(ConfigError, match="which nothing shows to be of an export"):
            write(tmp_path / "x", "other", replace=True)
        path.rmdir() if path.is_dir() else path.unlink()
    assert read(tmp_path / "x") == "one"


def test_a_whole_state_is_replaced(tmp_path: Path):
    (tmp_path / "x").mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (tmp_path / "x" / name).write_bytes(b"x")
    (tmp_path / "x" / "trainflow.json").write_bytes(encode_manifest(make_manifest()))
    write(tmp_path / "x", "other", replace=True)
    assert read(tmp_path / "x") == "other"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path: Path, *, is_there: bool):
    target, link = tmp_path / "disk" / "models", tmp_path / "link"
    if is_there:
        target.mkdir(parents=True)
    link.symlink_to(target)
    write(link, "one")
    with pytest.raises(ConflictError):
        write(link, "other")
    write(link, "other", replace=True)
    assert link.readlink() == target
    assert read(target) == "other"
    assert [path.name for path in target.parent.iterdir()] == ["models"]


def test_what_fails_when_it_takes_its_place_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "x", "one")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == "fresh":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write(tmp_path / "x", "other", replace=True)
    assert read(tmp_path / "x") == "one"


def fail_half_way(target: Path, error: BaseException) -> None:
    with fresh_folder(target, replace=True) as folder:
        (folder / "model.safetensors").write_text("half")
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_nothing(tmp_path: Path, error: BaseException):
    write(tmp_path / "x", "one")
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as raised:
        fail_half_way(tmp_path / "x", error)
    assert "No space left" in str(raised.value) or isinstance(error, KeyboardInterrupt)
    assert read(tmp_path / "x") == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
