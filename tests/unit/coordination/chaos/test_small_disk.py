"""A disk that is filled takes nothing more; emptied it does, and what was on it is kept."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainflow.coordination.chaos import small_disk
from trainflow.coordination.chaos.small_disk import SmallDisk
from trainflow.errors import ConfigError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except ConfigError as error:
        pytest.skip(str(error))
    yield disk
    if os.path.ismount(disk.folder):
        disk.close(tmp_path / "kept")


def test_filled_it_takes_nothing_and_emptied_it_does(disk: SmallDisk):
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "record").write_bytes(bytes(200_000))
    disk.empty()
    (disk.folder / "record").write_bytes(bytes(200_000))


def test_what_is_on_it_is_kept(disk: SmallDisk, tmp_path: Path):
    (disk.folder / "runs" / "tiny").mkdir(parents=True)
    (disk.folder / "runs" / "tiny" / "events.jsonl").write_text("{}\n")
    (tmp_path / "home" / "runs" / "other").mkdir(parents=True)
    disk.fill()
    disk.close(tmp_path / "home")
    assert not os.path.ismount(disk.folder)
    assert sorted(each.name for each in (tmp_path / "home").iterdir()) == ["runs"]
    assert (tmp_path / "home" / "runs" / "tiny" / "events.jsonl").read_text() == "{}\n"


def test_it_is_unmounted_also_where_what_is_on_it_can_not_be_kept(disk: SmallDisk, tmp_path: Path):
    (disk.folder / "record").write_text("{}")
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(FileExistsError):
        disk.close(tmp_path / "home")
    assert not os.path.ismount(disk.folder)


def test_where_nothing_may_be_mounted_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mount").write_text("#!/bin/sh\necho 'mount: permission denied' >&2\nexit 32\n")
    (programs / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=r"mount: permission denied\); expected the right to"):
        small_disk.SmallDisk(tmp_path / "disk")
