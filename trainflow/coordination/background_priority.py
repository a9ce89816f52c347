"""Threads that work beside training and must not take a core from it.

Process: keeper.
"""

import os
import threading

_LOWEST_NICENESS = 19


def yield_to_training() -> None:
    """Let this thread, and those that it starts, have only what training leaves of the cores.

    Under the scheduler's idle policy they give a core back at once when somebody else wants it.
    They still get a sliver of a busy one: a thread that never ran could hold the interpreter's lock
    for ever. Where a sandbox forbids the policy, the lowest niceness must do.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_NICENESS)
