"""Import what is large without looking for garbage meanwhile.

Modules stay. Python's collector of cycles goes over all their objects again and again while they
become more, and finds next to nothing: of importing torch that is a fifth of the time.

Process: driver, for the job's module; every worker.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Leave the collector off inside; in all threads, so only where modules are imported."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
