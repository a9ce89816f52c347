"""How the command line's process ends: as Python does, or at once, where a library would disturb.

Process: driver.  Thread: main.
"""

import os
from threading import Event

from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.output import settle_output

_must_be_at_once = Event()


def leave_at_once_in_the_end() -> None:
    """Have this process end, when it does, without what Python and libraries do then.

    Whoever has been connected to Ray asks for it: a thread of Ray's that still tells of tasks when
    the interpreter ends can crash the process, and its exit code would be that of the crash.
    """
    _must_be_at_once.set()


def heed_ending(ending: SystemExit) -> None:
    """End the process now with that exit code, if it is to end at once; else go on to end it."""
    if _must_be_at_once.is_set():
        settle_output()
        os._exit(ending.code if isinstance(ending.code, int) else ExitCode.FAILED)
