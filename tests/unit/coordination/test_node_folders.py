"""Folders of nodes that nobody has any more are removed, and no others."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.testbed.daemons import wait_for
from trainflow.coordination import node_folders
from trainflow.coordination.node_folders import NodeFolder, remove_abandoned

WITHIN_S = 10.0
LONG_AGO_S = 1e9


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders are made, in place of /tmp."""
    monkeypatch.setattr(node_folders, "_PLACE", tmp_path)
    return tmp_path


@pytest.fixture
def folder() -> Iterator[NodeFolder]:
    """One that a node wrote its logs to, long ago."""
    made = NodeFolder()
    logs = made.path / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("it begins")
    age(made.path)
    yield made
    made.close()


def age(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def test_what_its_starter_and_its_node_have_left_is_removed(folder: NodeFolder):
    folder.close()
    remove_abandoned()
    assert not folder.path.exists()


def test_what_is_in_use_stays(folder: NodeFolder):
    remove_abandoned()
    assert folder.path.exists()


def test_what_a_process_that_lives_was_started_with_stays(folder: NodeFolder):
    folder.close()
    command = ["sh", "-c", "read _; :", f"--temp-dir={folder.path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as raylet:
        try:
            process = psutil.Process(raylet.pid)
            wait_for(lambda: process.cmdline() == command, WITHIN_S, "its arguments")
            remove_abandoned()
            assert folder.path.exists()
        finally:
            raylet.kill()
    remove_abandoned()
    assert not folder.path.exists()


@pytest.mark.parametrize("what", ["session_1/logs/raylet.out", "in-use", "."])
def test_what_was_written_to_a_moment_ago_stays(folder: NodeFolder, what: str):
    folder.close()
    os.utime(folder.path / what)
    remove_abandoned()
    assert folder.path.exists()


def test_what_has_no_lock_is_somebody_else_s(folder: NodeFolder, place: Path):
    folder.close()
    (folder.path / "in-use").unlink()
    age(folder.path)
    link = place / "tf-link"
    link.symlink_to(shutil.copytree(folder.path, place / "kept"))
    (place / "kept" / "in-use").touch()
    age(place / "kept")
    remove_abandoned()
    assert folder.path.exists()
    assert link.exists()


def test_what_is_another_user_s_stays(folder: NodeFolder, monkeypatch: pytest.MonkeyPatch):
    folder.close()
    monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    remove_abandoned()
    assert folder.path.exists()


def test_a_folder_is_in_use_from_when_it_can_be_told_to_be_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[bool] = []
    lock = node_folders.fcntl.flock

    def look(descriptor: int, how: int) -> None:
        seen.append(any(place.glob("*/in-use")))
        lock(descriptor, how)

    monkeypatch.setattr(node_folders.fcntl, "flock", look)
    made = NodeFolder()
    made.close()
    made.close()
    assert seen == [False]
    assert (made.path / "in-use").exists()
