"""Run a module in a process that dies with the one that started it.

    python -m trainflow.checkpointing.bound_process PARENT MODULE

It is bound before the module, and with it torch, is imported: that takes seconds.

Process: one of its own; `torch_process` starts it.  Thread: main.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def bind_to(parent: int) -> bool:
    """Have this process die with ``parent``; False if that has died before it was asked for."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def run_bound(parent: int, module: str) -> None:
    """Run a module as ``python -m`` does; the process ends at once if ``parent`` is gone."""
    if bind_to(parent):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_bound(int(sys.argv[1]), sys.argv[2])
