"""One node of a Ray cluster on this machine: a tree of processes, and its files.

Process: driver.  Blocks: `stop_nodes`, until all have ended.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainflow.coordination.liveness import is_alive
from trainflow.coordination.node_folders import NodeFolder

NODE_VARIABLE = "TRAINFLOW_NODE"
"""What every process of a node has inherited: the folder with its files."""

_STOPS_WITHIN_S = 10.0
# The head's server of what all must know, and a node's manager, which ends if the former does.
_VITAL = ("gcs_server", "raylet")
_MOST_WORDS_CHARS = 300
_STARTED = "Ray runtime started"


@dataclass
class LocalNode:
    """One node: the ``ray start`` process and all that descends from it.

    Attributes:
        process: whose children are the node.
        temp_dir: Ray's files of this node.
        host: the address that it was given; None if Ray has found one.
        node_id: Ray's name for it, after which its folders in shared memory are named; "" until it
            has registered.
        first: its processes when it had registered, also those that a dead parent leaves behind.
        folder: its ``temp_dir``, if that is in use for as long as this process lives, or the node.
    """

    process: subprocess.Popen[bytes]
    temp_dir: Path
    host: str | None = None
    node_id: str = ""
    first: Sequence[psutil.Process] = ()
    folder: NodeFolder | None = None
    _vital: dict[str, psutil.Process] = field(default_factory=dict[str, psutil.Process], init=False)

    @property
    def pid(self) -> int:
        """Of the process whose children are the node."""
        return self.process.pid

    def kill(self) -> None:
        """End every process of the node at once, as a power cut does; its memory is left."""
        self.note_id()
        _kill(self.tree())
        self.process.wait()

    def stop(self) -> None:
        """End the node in order; what does not end is killed."""
        stop_nodes([self])

    def remove_files(self) -> None:
        """Remove Ray's files of a node that has ended; a repeat changes nothing."""
        shutil.rmtree(self.temp_dir, ignore_errors=True)
        if self.folder is not None:
            self.folder.close()

    def note_id(self) -> None:
        """Read the node's id from its processes, unless that is known, or they are gone."""
        if not self.node_id:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.node_id = find_node_id(psutil.Process(self.pid))

    def note_first(self) -> None:
        """Find the processes that it has, now that it has registered."""
        self.first = self.tree()
        named = {_name_of(each): each for each in self.first}
        self._vital = {name: named[name] for name in _VITAL if name in named}

    def find_dead(self) -> str | None:
        """Return which dead process it is no node without, and its last words; None if all live."""
        if self.process.poll() is not None:
            return f"{self.pid} (ray start)"
        for name, process in self._vital.items():
            if not is_alive(process):
                words = _last_words(self.temp_dir / "session_latest" / "logs", name)
                return f"{process.pid} ({name}{words})"
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it hasn't ended."""
        return self.process.poll() is None

    def find_unstarted(self) -> str:
        """Return how what it has printed ends, if it has not come up; else nothing."""
        if self.has_started:
            return ""
        return self.log()[-_MOST_WORDS_CHARS:].strip() or "it has printed nothing"

    @property
    def has_started(self) -> bool:
        """Whether it has ever come up."""
        return _STARTED in self.log()

    def log(self) -> str:
        """Return what it has printed."""
        return (self.temp_dir / "ray-start.log").read_text()

    def tree(self) -> list[psutil.Process]:
        """Return all of the node's processes, also those that a dead raylet was starting."""
        left = [
            *(each for each in self.first if each.is_running()),
            *find_processes_of(self.temp_dir),
        ]
        try:
            root = psutil.Process(self.process.pid)
            return list(dict.fromkeys([*root.children(recursive=True), *left, root]))
        except psutil.NoSuchProcess:
            return list(dict.fromkeys(left))


def find_processes_of(temp_dir: Path) -> list[psutil.Process]:
    """Return processes that were started with a node's files, whosever children they are by now.

    Their arguments say it, or, of forks, the variable that all of the node have inherited.
    """
    option = f"--temp-dir={temp_dir}"
    running = psutil.process_iter(["cmdline", "environ"])
    return [
        each
        for each in running
        if option in (each.info["cmdline"] or ())
        or (each.info["environ"] or {}).get(NODE_VARIABLE) == str(temp_dir)
    ]


def _last_words(logs: Path, name: str) -> str:
    """Return how a process' log ends, for a message; empty if it has none."""
    for path in (logs / f"{name}.err", logs / f"{name}.out"):
        with contextlib.suppress(OSError):
            words = ""
            for line in reversed(path.read_text(errors="replace").splitlines()):
                if len(longer := f"{' '.join(line.split())} {words}".strip()) > _MOST_WORDS_CHARS:
                    words = words or longer[:_MOST_WORDS_CHARS]
                    break
                words = longer
            if words:
                return f"; its log ends with: {words}"
    return ""


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def find_node_id(node: psutil.Process) -> str:
    """Return the id that a node's raylet was started with; "" if none says it."""
    option = "--node_id="  # by which Ray itself finds the nodes of a machine
    for process in node.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            for argument in process.cmdline():
                if argument.startswith(option):
                    return argument.removeprefix(option)
    return ""


def stop_nodes(nodes: Sequence[LocalNode]) -> None:
    """End nodes in order, side by side: each takes seconds, and most of them by waiting."""
    processes = [process for node in nodes for process in node.tree()]
    for node in nodes:
        node.note_id()
        with contextlib.suppress(ProcessLookupError):
            node.process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=_STOPS_WITHIN_S)
    _kill(alive)
    for node in nodes:
        node.process.wait()


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
