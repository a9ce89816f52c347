"""Threads that work beside training and must not take a core from it.

Process: keeper.
"""

import os
import threading

_LOWEST = 19


def yield_to_training() -> None:
    """Give this thread, and those that it starts, the lowest share of a busy core.

    It still gets some: a thread that never ran could hold the interpreter's lock for ever.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
