"""The folders with Ray's files of nodes that are started here, and what is left of them.

Whoever starts a node removes its folder when the node has ended, unless he is killed. A node may
outlive him, or not. So each folder has a file that is locked by both, who starts the node and the
node's first process (flock: the kernel gives it up with the last of them, whoever has their pids by
then), and whoever starts another one removes those that nobody has locked. It has its name only
once it is locked. A folder without it is somebody else's.

Process: driver.  Blocks: while files are removed.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.liveness import read_command_lines

_PLACE = Path("/tmp")  # the path of a socket below it must be short
_PREFIX = "tf-"
_LOCK = "in-use"
_UNUSED_AFTER_S = 60.0


class NodeFolder:
    """A new folder for a node's files, in use until it is closed.

    Attributes:
        path: it.
        lock: a descriptor that a process of the node inherits, to have it in use too.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE))
        unnamed = self.path / f"{_LOCK}.part"
        self.lock = os.open(unnamed, os.O_RDONLY | os.O_CREAT, 0o600)
        self._is_closed = False
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        """Use it no more; a repeat changes nothing."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.lock)


def remove_abandoned() -> None:
    """Remove this user's folders that are in use by nobody: no process, and none for a minute.

    What lives on of a node whose first process was killed has its folder in its command line; what
    can't be seen from here, as from another container, writes its logs there.
    """
    found = [path for path in _PLACE.glob(f"{_PREFIX}*") if _is_quiet(path)]
    if not found:
        return
    alive = read_command_lines()
    for path in found:
        if not _has_process(path, alive):
            _remove_unlocked(path)


def _is_quiet(folder: Path) -> bool:
    """Whether it is one of this user's in which nothing has been written for a while."""
    try:
        if folder.lstat().st_uid != os.geteuid():
            return False
        logs = folder.glob("session_*/logs/*")
        written_at_s = max(path.lstat().st_mtime for path in (folder, folder / _LOCK, *logs))
    except OSError:  # it goes at this moment, or has no lock: it is somebody else's
        return False
    return SYSTEM_CLOCK.unix_s() - written_at_s > _UNUSED_AFTER_S


def _has_process(folder: Path, command_lines: Collection[str]) -> bool:
    return any(str(folder) in line for line in command_lines)


def _remove_unlocked(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
