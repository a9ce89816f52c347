"""Measured processes that never outlive the harness, whatever ends it.

Process: the harness and its direct children.  Linux only.
"""

import ctypes
import os
import signal
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1


def become_measured(log_path: Path) -> None:
    """Turn this fresh child into a measured process: it dies with its parent and logs to a file."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with log_path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def stop_tree(process: SpawnProcess, grace_s: float) -> None:
    """Stop a child by SIGTERM, after ``grace_s`` seconds by SIGKILL, then what it leaves behind."""
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        descendants = []
    process.terminate()
    process.join(grace_s)
    process.kill()
    process.join()
    for descendant in psutil.wait_procs(descendants, timeout=grace_s)[1]:
        descendant.kill()
