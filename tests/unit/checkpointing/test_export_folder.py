"""A folder is there whole or not at all, and nothing of the user's is lost for it."""

import errno
from pathlib import Path

import pytest

from trainflow.checkpointing.export_folder import fresh_folder
from trainflow.errors import CheckpointError, ConfigError, ConflictError


def write(target: Path, content: str, *, replace: bool = False) -> None:
    with fresh_folder(target, replace=replace) as folder:
        (folder / "model.safetensors").write_text(content)
        assert not list(target.glob("model*")) or replace, "not before it is whole"


def test_a_folder_appears_with_all_that_is_in_it(tmp_path: Path):
    write(tmp_path / "a" / "b", "one")
    assert (tmp_path / "a" / "b" / "model.safetensors").read_text() == "one"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_an_empty_folder_is_taken(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "one")
    assert (tmp_path / "empty" / "model.safetensors").exists()


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path):
    write(tmp_path / "x", "one")
    with pytest.raises(ConflictError, match=r"holds model\.safetensors.*--force"):
        write(tmp_path / "x", "other")
    assert (tmp_path / "x" / "model.safetensors").read_text() == "one"
    write(tmp_path / "x", "other", replace=True)
    assert (tmp_path / "x" / "model.safetensors").read_text() == "other"


def test_what_no_export_wrote_is_never_replaced(tmp_path: Path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt, which no export writes"):
        write(tmp_path / "x", "other", replace=True)
    assert (tmp_path / "x" / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="which is a file"):
        write(tmp_path / "x" / "notes.txt", "other", replace=True)


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
    assert (tmp_path / "x" / "model.safetensors").read_text() == "one"


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
    assert (tmp_path / "x" / "model.safetensors").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
