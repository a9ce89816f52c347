"""Remove what is left in a machine's shared memory by nodes that were killed.

A job that ends removes it itself, and of a node that Ray has given up another Keeper of the machine
does. If a whole cluster is killed nobody is left to. So whoever ends a node of its own removes what
that has left (`remove_of_node`), and each Keeper what it finds of nodes that nobody remembers.

Containers may share /dev/shm without seeing each other's processes. So what is nobody's is told by
what lies there, too: workers stamp their pulse ten times a second, and a Keeper marks its folder
with each heartbeat.

Process: keeper; driver.  Blocks: while files are removed.
"""

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.stamps import read_stamp, remove_empty_folders
from trainflow.coordination import names
from trainflow.coordination.liveness import (
    LOOK_EVERY_S,
    find_processes,
    read_command_lines,
    wait_gone,
)
from trainflow.coordination.stamped_processes import is_there

_DIE_WITHIN_S = 2.0
_UNUSED_AFTER_S = 60.0


def mark_used(folder: Path) -> None:
    """Show whoever can't see this process that the folder of its node, if it is there, is used."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def remove_of_node(node_id: str) -> None:
    """Remove what a dead node has left; that of a run with a live process stays."""
    for folder in names.memory_directory().glob(f"*/{node_id}"):
        if not wait_gone(find_processes(_wait_stamped(folder)), _DIE_WITHIN_S):
            _remove(folder)


def remove_abandoned() -> None:
    """Remove what nodes have left that are gone."""
    for folder in find_abandoned():
        _remove(folder)


def find_abandoned() -> list[Path]:
    """Return this user's folders, one a node and job, that nobody uses any more.

    No process of this machine is started for that node, or is a worker of it, and for a minute
    nothing has been stamped, written or marked there.
    """
    quiet = [folder for folder in names.memory_directory().glob("*/*") if _is_quiet(folder)]
    if not quiet:
        return []
    alive = read_command_lines()  # later than the folders: a node is there before its folder is
    return [folder for folder in quiet if not _has_process(folder, alive)]


def measure_bytes(folders: Collection[Path]) -> int:
    """Return the memory that files in these folders take."""
    total = 0
    for folder in folders:
        with contextlib.suppress(OSError):
            total += sum(path.stat().st_blocks for path in folder.iterdir()) * 512
    return total


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    remove_empty_folders(folder)


def _is_quiet(folder: Path) -> bool:
    """Whether nothing has happened there for a while; False, too, where that can't be told."""
    try:
        if folder.stat().st_uid != os.geteuid():
            return False
        written_at_s = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        pulses_s = [stamp.pulse_at_s for path in _stamps(folder) if (stamp := read_stamp(path))]
    except OSError:  # it goes at this moment, is another user's, or no folder
        return False
    ages_s = [SYSTEM_CLOCK.unix_s() - written_at_s]
    ages_s += [SYSTEM_CLOCK.monotonic_s() - pulse_s for pulse_s in pulses_s]
    return min(ages_s) > _UNUSED_AFTER_S


def _has_process(folder: Path, command_lines: Collection[str]) -> bool:
    if any(folder.name in line for line in command_lines):
        return True  # its raylet and agents are told the node's id
    try:
        stamps = [stamp for path in _stamps(folder) if (stamp := read_stamp(path))]
    except OSError:
        return True
    return any(is_there(stamp) for stamp in stamps)


def _stamps(folder: Path) -> list[Path]:
    return list(folder.glob("*.stamp"))


def _wait_stamped(folder: Path) -> set[int]:
    """Return the pids of the workers of a folder, once each has stamped.

    From a stamp's file to its stamp it takes microseconds: if there is none after a while, whoever
    made the file was killed in between.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _DIE_WITHIN_S
    while True:
        is_over = SYSTEM_CLOCK.monotonic_s() > deadline_s  # before the last look, not after it
        stamps = [read_stamp(path) for path in _stamps(folder)]
        if is_over or None not in stamps:
            return {stamp.pid for stamp in stamps if stamp is not None}
        SYSTEM_CLOCK.sleep(LOOK_EVERY_S)
