"""What is still there of a run that is over: processes, sockets, actors, shared memory.

Process: driver, connected to the run's cluster, on its machine.  Blocks: for a look.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil
from ray.util import list_named_actors, placement_group_table

from trainflow.coordination import names

_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Traces:
    """The processes of a run, as they were seen, and the sockets that they listened at."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._sockets: dict[int, int] = {}

    def note(self, pids: Iterable[int]) -> None:
        """See processes of the run, and what they have started; of known ones sockets once more."""
        self._see(pids)
        self._see(self._find_started())  # of new ones too: who is killed soon may leave some

    def find(self, pid: int) -> psutil.Process | None:
        """Return the process that had this pid when it was seen, whoever has it now."""
        return self._processes.get(pid)

    def _see(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(psutil.Error):
                process = self._processes.get(pid)
                if process is None or not process.is_running():
                    process = self._processes[pid] = psutil.Process(pid)
                self._sockets |= _listening(pid)

    def _find_started(self) -> list[int]:
        """Return the processes that those which are known have started, and which still live."""
        found: list[int] = []
        for process in self._processes.values():
            with suppress(psutil.Error):
                found += [child.pid for child in process.children(recursive=True)]
        return found

    def find_left(self, job_id: str) -> list[str]:
        """Return what is left of a run, each in words."""
        left = [f"process {pid}" for pid, each in self._processes.items() if _is_alive(each)]
        left += [f"socket at port {port}" for port in sorted(self._find_open())]
        # Ray annotates what it returns for one namespace: names alone.
        actors = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
        left += [
            f"actor {each['name']}" for each in actors if each["name"].startswith(f"{job_id}/")
        ]
        left += [
            f"placement group {group['name']}"
            for group in placement_group_table().values()
            if group["name"].startswith(f"{job_id}/") and group["state"] != "REMOVED"
        ]
        memory = names.stamp_directory(job_id, "any").parent
        return left + [str(path) for path in (memory, *memory.glob("**/*")) if path.exists()]

    def _find_open(self) -> set[int]:
        """Return the ports of the run whose sockets some process holds, whoever that is."""
        held: set[int] = set()
        for process in psutil.process_iter():
            held |= _sockets_of(process.pid)
        return {port for socket, port in self._sockets.items() if socket in held}


def _listening(pid: int) -> dict[int, int]:
    """Return the TCP sockets that a process listens at, each with its port.

    They are told from each other by their inodes: a port is given to another when it is free.
    """
    own = _sockets_of(pid)
    found: dict[int, int] = {}
    for table in ("tcp", "tcp6"):  # of the network namespace that the process is in
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and int(inode) in own:
                    found[int(inode)] = int(local.rpartition(":")[2], base=16)
    return found


def _sockets_of(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process holds; none of one that is gone."""
    found: set[int] = set()
    with suppress(OSError):
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it has been closed since
                socket = _SOCKET.fullmatch(str(opened.readlink()))
                if socket is not None:
                    found.add(int(socket[1]))
    return found


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
