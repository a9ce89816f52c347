"""Whether processes that this one has not started are gone, and to wait until they are.

Process: any.  Blocks: `wait_gone` only.
"""

import contextlib
from collections.abc import Iterable

import psutil

from trainflow.clock import SYSTEM_CLOCK

LOOK_EVERY_S = 0.05


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process runs; one whose parent has yet to take note of its end doesn't."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def find_processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Return those that are there."""
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def read_command_lines() -> list[str]:
    """Return the command lines of all processes that are seen from here."""
    lines: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


def wait_gone(processes: list[psutil.Process], within_s: float) -> list[int]:
    """Wait until all are gone; returns the pids of those that are still alive after a while."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + within_s
    while alive := [process.pid for process in processes if is_alive(process)]:
        if SYSTEM_CLOCK.monotonic_s() > deadline_s:
            break
        SYSTEM_CLOCK.sleep(LOOK_EVERY_S)
    return alive
