"""How a cluster of this machine's own ends, with shells for nodes."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from trainflow.coordination.local_cluster import LocalCluster, LocalNode

# Told to end, each node waits until the other has been told too; the head only looks.
WAITS = 'touch "$0"; until [ -e "$1" ]; do sleep 0.01; done; exit 0'
LOOKS = '[ -e "$0" ] && [ -e "$1" ]; exit'


class Nodes:
    """Starts shells that do something when they are told to end."""

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack

    def start(self, name: str, then: str, *marks: str) -> LocalNode:
        script = f"trap '{then}' TERM; echo up; while :; do sleep 0.05; done"
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
