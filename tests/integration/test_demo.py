"""The demo ended from outside: its nodes are process trees of their own, and end with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 30
TEMP_DIR = "--temp-dir="

# What would train waits for a signal instead, as a connected driver.
DEMO = f"""
import signal, sys
sys.path.insert(0, {str(ROOT)!r})
from jobs import demo
demo.NUM_NODES = 1
demo.run_to_end = lambda *_: signal.pause()
demo.main()
"""


class StartedDemo:
    """The demo, connected to its cluster; knows the processes and folders of its nodes."""

    def __init__(self, folder: Path):
        (folder / "out/corpus").mkdir(parents=True)
        (folder / "out/corpus/corpus.json").touch()
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINFLOW", "RAY"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DEMO],
            cwd=folder,
            env=ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert "nodes are up" in self.process.stdout.readline()
        demo = psutil.Process(self.process.pid)
        self.nodes = demo.children(recursive=True)
        words = [word for node in demo.children() for word in node.cmdline()]
        self.folders = [Path(w.removeprefix(TEMP_DIR)) for w in words if w.startswith(TEMP_DIR)]
        assert len(self.folders) == 2

    def wait_one_gone(self) -> None:
        deadline_s = time.monotonic() + GONE_WITHIN_S
        while not psutil.wait_procs(self.nodes, timeout=0.05)[0]:
            assert time.monotonic() < deadline_s, "no process of a node ended"

    def list_alive(self) -> list[psutil.Process]:
        """Return what of the nodes is still there after a while."""
        return psutil.wait_procs(self.nodes, timeout=GONE_WITHIN_S)[1]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[StartedDemo]:
    started = StartedDemo(tmp_path)
    yield started
    started.process.kill()
    for node in started.nodes:
        if node.is_running():
            node.kill()
    started.process.communicate()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_cluster_and_others_wait_for_that(
    demo: StartedDemo, number: signal.Signals
):
    demo.process.send_signal(number)
    demo.wait_one_gone()
    demo.process.send_signal(number)
    demo.process.communicate(timeout=GONE_WITHIN_S)
    assert demo.process.returncode == 128 + number
    assert demo.list_alive() == []
    assert [folder for folder in demo.folders if folder.exists()] == []


def test_nodes_end_when_the_demo_is_killed(demo: StartedDemo):
    demo.process.kill()
    assert demo.list_alive() == []
