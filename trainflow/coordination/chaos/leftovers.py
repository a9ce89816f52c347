"""What is still there of a run that is over: processes, sockets, actors, shared memory.

Process: driver, connected to the run's cluster, on its machine.  Blocks: for a look.
"""

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil
from ray.util import list_named_actors, placement_group_table

from trainflow.coordination import names

_LISTENS, _BOUND = "0A", "07"  # of TCP and of UDP
_OWN_TABLES = {"tcp": _LISTENS, "tcp6": _LISTENS, "udp": _BOUND, "udp6": _BOUND}
_WORDS_WITH_A_NAME, _ACCEPTS, _DATAGRAMS = 8, 0x10000, "0002"  # of /proc/net/unix
_SHARED_MEMORY = "/dev/shm/"
_COMMAND_SHOWN = 100  # characters
_REMOVED = " (deleted)"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Traces:
    """The processes of a run, as they were seen, their sockets that others reach, their memory."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._sockets: dict[int, str] = {}
        self._shared: dict[str, int] = {}  # inodes by path
        self._others = set(_list_shared().values())

    def note(self, pids: Iterable[int]) -> None:
        """See processes of the run, and what they have started; of known ones sockets once more."""
        self._see(pids)
        self._see(self._find_started())  # of new ones too: who is killed soon may leave some

    def excuse(self, pids: Iterable[int]) -> None:
        """What these have mapped is gone with their node, as far as that is what it stands for."""
        for pid in pids:
            self._others.update(_find_shared(pid).values())

    def find(self, pid: int) -> psutil.Process | None:
        """Return the process that had this pid when it was seen, whoever has it now."""
        return self._processes.get(pid)

    def _see(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(psutil.Error):
                process = self._processes.get(pid)
                if process is None or not process.is_running():
                    process = self._processes[pid] = psutil.Process(pid)
                self._sockets |= _find_sockets(pid)
                self._shared |= _find_shared(pid)

    def _find_started(self) -> list[int]:
        """Return the processes that those which are known have started, and which still live."""
        found: list[int] = []
        for process in self._processes.values():
            with suppress(psutil.Error):
                found += [child.pid for child in process.children(recursive=True)]
        return found

    def find_left(self, job_id: str) -> list[str]:
        """Return what is left of a run, each in words."""
        alive = {pid for pid, each in self._processes.items() if _is_alive(each)}
        left = [_describe(pid) for pid in sorted(alive | self._find_grouped())]
        left += [f"socket at {place}" for place in sorted(self._find_open())]
        left += [
            path
            for path, inode in sorted(self._shared.items())
            if _inode_of(path) == inode and inode not in self._others
        ]
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
        left += [str(path) for path in (memory, *memory.glob("**/*")) if path.exists()]
        return list(dict.fromkeys(left))

    def find_new_shared(self) -> list[str]:
        """Return what is new in shared memory and that nobody was seen to have mapped.

        It may be the run's, or of whoever else uses this machine.
        """
        known = self._others.union(self._shared.values())
        return sorted(path for path, inode in _list_shared().items() if inode not in known)

    def _find_grouped(self) -> set[int]:
        """Return the processes of groups and sessions that processes of the run have led.

        They were started by one of those, and perhaps never seen while it lived.
        """
        found: set[int] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                leaders = {os.getpgid(process.pid), os.getsid(process.pid)}
                is_own = any(self._has_led(each) for each in leaders)
                if is_own and _is_alive(process):
                    found.add(process.pid)
        return found

    def _has_led(self, leader: int) -> bool:
        """Whether a group's number is of a process of the run, and of nobody who has it by now."""
        known = self._processes.get(leader)
        return known is not None and (known.is_running() or not psutil.pid_exists(leader))

    def _find_open(self) -> set[str]:
        """Return where the run's sockets are that some process holds, whoever that is."""
        held: set[int] = set()
        for process in psutil.process_iter():
            held |= _sockets_of(process.pid)
        return {place for socket, place in self._sockets.items() if socket in held}


def _find_sockets(pid: int) -> dict[int, str]:
    """Return the sockets that others may reach a process at, each with where that is.

    Those are TCP's that listen, UDP's, and of this machine those with a name. They are told from
    each other by their inodes: a port is given to another when it is free.
    """
    own = _sockets_of(pid)
    found: dict[int, str] = {}
    for table, wanted in _OWN_TABLES.items():  # of the network namespace that the process is in
        with suppress(OSError):
            for line in _read_lines(f"/proc/{pid}/net/{table}")[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == wanted and int(inode) in own:
                    found[int(inode)] = f"port {int(local.rpartition(':')[2], base=16)}"
    with suppress(OSError):
        for line in _read_lines(f"/proc/{pid}/net/unix")[1:]:
            words = line.split(maxsplit=7)
            if len(words) == _WORDS_WITH_A_NAME and int(words[6]) in own:
                is_reached = int(words[3], base=16) & _ACCEPTS or words[4] == _DATAGRAMS
                if is_reached:
                    found[int(words[6])] = words[7]
    return found


def _find_shared(pid: int) -> dict[str, int]:
    """Return the files in shared memory that a process has mapped and that have a name."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in _read_lines(f"/proc/{pid}/maps"):
            if _SHARED_MEMORY in line and not line.endswith(_REMOVED):
                *_, inode, path = line.split(maxsplit=5)
                found[path] = int(inode)
    return found


def _list_shared() -> dict[str, int]:
    """Return all files in shared memory with their inodes."""
    found = (Path(folder, name) for folder, _, files in os.walk(_SHARED_MEMORY) for name in files)
    inodes = {str(path): _inode_of(str(path)) for path in found}
    return {path: inode for path, inode in inodes.items() if inode is not None}


def _describe(pid: int) -> str:
    """Return a process in words that still say what it was when it is gone."""
    with suppress(psutil.Error):
        command = " ".join(shlex.join(psutil.Process(pid).cmdline()).split())
        return f"process {pid} ({command[:_COMMAND_SHOWN]})" if command else f"process {pid}"
    return f"process {pid}"


def _read_lines(path: str) -> list[str]:
    """Return the lines of a file whose names need not be text."""
    return os.fsdecode(Path(path).read_bytes()).splitlines()


def _inode_of(path: str) -> int | None:
    with suppress(OSError):
        return Path(path).stat().st_ino
    return None


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
