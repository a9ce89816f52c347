"""Processes that stand still, and can show where."""

import os
import subprocess
import sys
from pathlib import Path

WORKER_ID = "slot1-1.1"
HANGS = {
    "sleep": "time.sleep(1000)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "library that holds Python's lock": "ctypes.PyDLL(None).sleep(1000)",
}

_PROGRAM = """
import ctypes, signal, sys, threading, time
from pathlib import Path
from trainflow.computation.stack_file import STACK_SIGNAL, StackFile
from trainflow.computation.stamps import StampWriter

folder, worker_id = Path(sys.argv[1]), sys.argv[2]

def stand_still():
    {begin}
    print("stands", flush=True)
    {hang}

stamps = StampWriter(folder / (worker_id + ".stamp"))
{prepare}
thread = threading.Thread(target=stand_still)
thread.start()
thread.join()
"""
_PREPARE = 'stacks = StackFile(folder / (worker_id + ".stacks"))'


def start_standing(
    folder: Path,
    hang: str = HANGS["sleep"],
    *,
    prepare: str = _PREPARE,
    begin: str = "stacks.name_training_thread()",
) -> subprocess.Popen[bytes]:
    """Start a worker's process; returns once its training thread is about to stand still."""
    program = _PROGRAM.format(hang=hang, prepare=prepare, begin=begin)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), WORKER_ID],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"stands\n"
    return process
