"""A store is asked whether it keeps to the condition that the marker relies on."""

from pathlib import Path
from uuid import uuid4

import pytest

from trainflow.checkpointing.probing import require_usable
from trainflow.checkpointing.store_files import LocalFiles, OtherFiles
from trainflow.errors import StoreError


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid4()}"


def test_a_good_store_passes_and_keeps_nothing_of_it(url: str, tmp_path: Path):
    require_usable(url)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_it_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    write = LocalFiles.write_new

    def note(files: LocalFiles, path: str, data: bytes) -> None:
        written.append(path)
        write(files, path, data)

    monkeypatch.setattr(LocalFiles, "write_new", note)
    for _ in range(3):
        require_usable(str(tmp_path))
    assert len(written) == 2


def test_one_that_replaces_what_it_was_told_not_to_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        OtherFiles, "write_new", lambda files, path, data: files.write_whole(path, data)
    )
    with pytest.raises(StoreError, match="use a bucket without versioning, or another store"):
        require_usable(f"memory://{uuid4()}")


def test_one_that_says_it_refused_and_did_not_is_refused(monkeypatch: pytest.MonkeyPatch):
    write = OtherFiles.write_new

    def replace_and_refuse(files: OtherFiles, path: str, data: bytes) -> None:
        try:
            write(files, path, data)
        except FileExistsError:
            files.write_whole(path, data)
            raise

    monkeypatch.setattr(OtherFiles, "write_new", replace_and_refuse)
    with pytest.raises(StoreError, match="replaces a file though told not to"):
        require_usable(f"memory://{uuid4()}")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch):
    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(StoreError, match="that its file system has hard links"):
        require_usable(str(tmp_path))


def test_one_that_does_not_list_what_it_has_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(LocalFiles, "names", lambda files, folder: [])
    with pytest.raises(StoreError, match="doesn't find what has just been written"):
        require_usable(str(tmp_path))


@pytest.mark.parametrize("times", [1, 2])
def test_somebody_who_collects_meanwhile_does_no_harm(tmp_path: Path, monkeypatch, times: int):
    read = LocalFiles.read
    left = [times]

    def remove_and_read(files: LocalFiles, path: str, at_most: int) -> bytes:
        if left[0]:
            left[0] -= 1
            files.remove(path)
        return read(files, path, at_most)

    monkeypatch.setattr(LocalFiles, "read", remove_and_read)
    require_usable(str(tmp_path))
    assert left == [0]
