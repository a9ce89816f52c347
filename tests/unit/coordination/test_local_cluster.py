"""How a cluster of this machine's own ends, with shells for nodes."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Never

import psutil
import pytest

from tests.testbed.daemons import wait_for
from tests.unit.coordination.left_stamps import leave_stamp, stand_in_for_memory
from trainflow.coordination import local_cluster, node_folders
from trainflow.coordination.liveness import is_alive, wait_gone
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.local_node import NODE_VARIABLE, LocalNode
from trainflow.coordination.sites import Loopback

# Told to end, each node waits until the other has been told too; the head only looks.
WAITS = 'touch "$0"; until [ -e "$1" ]; do sleep 0.01; done; exit 0'
WITHIN_S = 10.0
LOOKS = '[ -e "$0" ] && [ -e "$1" ]; exit'


class Nodes:
    """Starts shells that do something when they are told to end."""

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack

    def start(self, name: str, then: str, *marks: str) -> LocalNode:
        return self.run(name, f"trap '{then}' TERM; echo up; while :; do sleep 0.05; done", *marks)

    def run(self, name: str, script: str, *marks: str) -> LocalNode:
        paths = [str(self._folder / mark) for mark in marks]
        process = subprocess.Popen(["sh", "-c", script, *paths], stdout=subprocess.PIPE)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        temp_dir = self._folder / f"files of {name}"
        temp_dir.mkdir()
        return LocalNode(process, temp_dir)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack)


def test_nodes_end_side_by_side_and_before_the_head(nodes: Nodes):
    head = nodes.start("head", LOOKS, "a", "b")
    others = [nodes.start("a", WAITS, "a", "b"), nodes.start("b", WAITS, "b", "a")]
    LocalCluster("", head, others).stop()
    assert [node.process.returncode for node in (*others, head)] == [0, 0, 0]
    assert not any(node.temp_dir.exists() for node in (*others, head))


def test_what_nodes_have_in_memory_goes_with_them(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = stand_in_for_memory(tmp_path / "shm", monkeypatch)
    head, other = nodes.start("head", "exit"), nodes.start("other", "exit")
    dead = nodes.start("dead", "exit")
    for node in (head, other, dead):
        node.node_id = node.temp_dir.name
        leave_stamp(memory / "job" / node.node_id, node.pid)
    (memory / "job" / "of another cluster").mkdir()
    cluster = LocalCluster("", head, [dead])
    dead.kill()
    monkeypatch.setattr(LocalCluster, "_begin_node", lambda *_: other)
    cluster.begin_replacing(dead, 1)
    cluster.stop()
    assert [folder.name for folder in (memory / "job").iterdir()] == ["of another cluster"]


def test_a_node_that_is_killed_knows_its_id(nodes: Nodes):
    raylet = """sh -c 'echo up; read -r _ < "$0"; :' "$0" --node_id=5eed"""
    node = nodes.run("node", f'mkfifo "$0"; {raylet} & wait', "pipe")
    node.kill()
    assert node.node_id == "5eed"


@pytest.fixture
def raylet(tmp_path: Path) -> str:
    """A program of that name, by which it is known; it waits."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    (tmp_path / "raylet").symlink_to(sleep)
    return f"{tmp_path}/raylet 60"


def test_a_node_is_dead_with_its_raylet(nodes: Nodes, raylet: str):
    node = nodes.run("node", f"{raylet} & sleep 60 & echo up; wait")
    assert node.find_dead() is None
    wait_for(lambda: any(each.name() == "raylet" for each in node.tree()), WITHIN_S, "raylet")
    node.note_first()
    assert node.find_dead() is None
    (vital,) = (each for each in node.first if each.name() == "raylet")
    vital.kill()
    wait_for(lambda: node.find_dead() == f"{vital.pid} (raylet)", WITHIN_S, "its death")
    logs = node.temp_dir / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("it begins\nno room is left\n")
    expected = f"{vital.pid} (raylet; its log ends with: it begins no room is left)"
    assert node.find_dead() == expected
    node.kill()


def test_what_a_dead_parent_leaves_behind_goes_with_the_node(nodes: Nodes):
    node = nodes.run("node", "sh -c 'sleep 60 & echo up; wait' & wait")
    wait_for(lambda: len(node.tree()) == 3, WITHIN_S, "its processes")
    node.note_first()
    sleeper, parent = sorted(node.first, key=lambda each: each.name() != "sleep")[:2]
    parent.kill()
    node.process.kill()
    node.process.wait()
    assert is_alive(sleeper)
    node.kill()
    assert wait_gone([sleeper], WITHIN_S) == []


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("is_fork", [True, False])
def test_so_does_what_a_dead_raylet_was_starting_or_a_dead_keeper_has_forked(
    nodes: Nodes, *, is_ours: bool, is_fork: bool
):
    node = nodes.start("head", "exit")
    node.note_first()
    place = node.temp_dir if is_ours else f"{node.temp_dir}2"
    options = [] if is_fork else [f"--temp-dir={place}"]
    command = ["sh", "-c", "while :; do sleep 0.05; done", *options]
    variables = {NODE_VARIABLE: str(place)} if is_fork else {}
    with subprocess.Popen(command, env=os.environ | variables) as late:
        try:
            process = psutil.Process(late.pid)
            wait_for(lambda: bool(process.cmdline()), WITHIN_S, "its arguments")
            node.kill()
            assert (wait_gone([process], WITHIN_S if is_ours else 0.3) == []) is is_ours
        finally:
            late.kill()


def test_a_head_does_not_outlive_a_signal_that_comes_as_it_starts(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    head = nodes.start("head", "exit")

    def interrupt(_node: LocalNode) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_cluster, "_start_node", lambda *_, **_options: head)
    monkeypatch.setattr(LocalNode, "log", interrupt)
    with pytest.raises(KeyboardInterrupt):
        LocalCluster.start(head_cpus=1)
    assert head.process.returncode == -signal.SIGKILL
    assert not head.temp_dir.exists()


def test_a_signal_that_comes_as_nodes_end_leaves_nothing_of_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    head, other = nodes.start("head", "exit"), nodes.start("other", "exit")

    def interrupt(*_: object, **_options: object) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(psutil, "wait_procs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        LocalCluster("", head, [other]).stop()
    assert -signal.SIGKILL in {head.process.returncode, other.process.returncode}
    assert not head.temp_dir.exists()
    assert not other.temp_dir.exists()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nodes have their folders, in place of /tmp."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(node_folders, "_PLACE", place)
    return place


class SleepingSites(Loopback):
    """Sleeps in place of what is to be run on a node."""

    def command(self, number: int, command: list[str]) -> list[str]:
        return ["sleep", "60"]


def test_a_node_has_its_folder_in_use_without_its_starter(place: Path):
    node = local_cluster._start_node(SleepingSites(), 0, [], bound=False)
    assert node.folder is not None
    try:
        node.folder.close()  # as the end of this process would
        with pytest.raises(BlockingIOError):
            take_lock(node.temp_dir)
        node.kill()
        take_lock(node.temp_dir)
    finally:
        node.kill()
    node.remove_files()
    assert list(place.iterdir()) == []


def take_lock(folder: Path) -> None:
    with (folder / "in-use").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_left_of_nodes_is_removed_before_others_start(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []

    def start(*_: object, **_options: object) -> Never:
        calls.append("start")
        raise KeyboardInterrupt

    monkeypatch.setattr(local_cluster, "remove_abandoned", lambda: calls.append("remove"))
    monkeypatch.setattr(local_cluster, "_start_node", start)
    with pytest.raises(KeyboardInterrupt):
        LocalCluster.start(head_cpus=1)
    assert calls == ["remove", "start"]
