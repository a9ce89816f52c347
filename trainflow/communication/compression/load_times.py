"""What a process has spent until its kernels were there: on loading, building or compiling them.

Process: every rank.  Thread: training counts, any reads.
"""

from collections.abc import Generator
from contextlib import contextmanager

from trainflow.clock import SYSTEM_CLOCK

_spent_s: list[float] = []


@contextmanager
def counted() -> Generator[None]:
    """Count what is done inside."""
    began_s = SYSTEM_CLOCK.monotonic_s()
    try:
        yield
    finally:
        _spent_s.append(SYSTEM_CLOCK.monotonic_s() - began_s)


def seconds_loading() -> float:
    """Return the seconds spent so far."""
    return sum(_spent_s)
