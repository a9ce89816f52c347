"""Whether the process that has written a stamp is still there.

Process: any on its machine.  Blocks: for a file of /proc.
"""

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.stamps import Stamp
from trainflow.coordination.start_times import read_process_age_s

_TOLERANCE_S = 0.1  # the kernel tells ages in hundredths


def is_there(stamp: Stamp) -> bool:
    """Whether the worker that has stamped is there, and no later process has its pid.

    By clocks that nobody sets. What can't be told counts as there.
    """
    pulse_age_s = SYSTEM_CLOCK.monotonic_s() - stamp.pulse_at_s
    try:
        return read_process_age_s(stamp.pid) > pulse_age_s - _TOLERANCE_S
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # no descriptor is left, say
        return True
