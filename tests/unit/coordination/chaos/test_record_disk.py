"""A disk that is filled takes nothing more; emptied it does, and what was on it is kept."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainflow.coordination.chaos import record_disk
from trainflow.coordination.chaos.record_disk import RecordDisk, find_abandoned_disks
from trainflow.errors import ConfigError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RecordDisk]:
    try:
        disk = RecordDisk(tmp_path / "disk")
    except ConfigError as error:
        pytest.skip(str(error))
    yield disk
    if os.path.ismount(disk.folder):
        disk.close(tmp_path / "kept")


def test_filled_it_takes_nothing_and_emptied_it_does(disk: RecordDisk):
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "record").write_bytes(bytes(200_000))
    disk.empty()
    (disk.folder / "record").write_bytes(bytes(200_000))


def test_what_is_on_it_is_kept(disk: RecordDisk, tmp_path: Path):
    (disk.folder / "runs" / "tiny").mkdir(parents=True)
    (disk.folder / "runs" / "tiny" / "events.jsonl").write_text("{}\n")
    (tmp_path / "home" / "runs" / "other").mkdir(parents=True)
    disk.fill()
    disk.close(tmp_path / "home")
    assert not os.path.ismount(disk.folder)
    assert sorted(each.name for each in (tmp_path / "home").iterdir()) == ["runs"]
    assert (tmp_path / "home" / "runs" / "tiny" / "events.jsonl").read_text() == "{}\n"


def test_it_takes_a_long_campaign_s_record_and_more_after_it_was_full(disk: RecordDisk):
    (disk.folder / "record").write_bytes(bytes(40_000_000))
    disk.fill()
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "more").write_bytes(bytes(200_000))
    disk.empty()
    disk.empty()
    (disk.folder / "more").write_bytes(bytes(200_000))


def test_disks_of_a_process_that_is_gone_are_abandoned():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mounts = "\n".join(
        [
            "proc /proc proc rw,nosuid 0 0",
            f"trainflow-chaos-{gone.pid} /tmp/a\\040b/disk tmpfs rw,size=8k 0 0",
            f"trainflow-chaos-{os.getpid()} /tmp/own/disk tmpfs rw 0 0",
            f"tmpfs /trainflow-chaos-{gone.pid} tmpfs rw 0 0",
        ]
    )
    assert find_abandoned_disks(mounts) == [Path("/tmp/a b/disk")]


def test_one_that_was_left_is_unmounted_by_the_next(
    disk: RecordDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(record_disk, "find_abandoned_disks", lambda _: [disk.folder])
    next_one = RecordDisk(tmp_path / "next")
    assert not os.path.ismount(disk.folder)
    next_one.close(tmp_path / "kept")


def test_it_is_unmounted_also_where_what_is_on_it_can_not_be_kept(disk: RecordDisk, tmp_path: Path):
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
        record_disk.RecordDisk(tmp_path / "disk")
