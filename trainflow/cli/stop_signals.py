"""Signals that ask for an end: a run grants the wish in order, other commands clean up and leave.

Process: driver.  Thread: main.
"""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Never, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_in_order() -> Generator[None]:
    """Have SIGTERM and SIGHUP end what goes on as SIGINT does: what was begun is cleaned up.

    The process then leaves with 128 and the signal's number. Further ones don't disturb that. Who
    has a signal ignored, as nohup does, has it ignored here too.
    """
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> Never:
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


class StopSignals:
    """Counts the signals that ask for an end.

    The first one is noted, for whoever looks at ``received``. A second one raises KeyboardInterrupt
    once that is safe, which ``second_interrupts`` says; before, it is noted too. Further ones don't
    disturb the cleaning up after that.
    """

    def __init__(self) -> None:
        self.received = 0
        self.second_interrupts = False
        self._before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def install(self) -> None:
        """Take the signals, also from a library that has taken them since."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.second_interrupts and self.received > 1:
            self.second_interrupts = False
            raise KeyboardInterrupt
