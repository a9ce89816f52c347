"""SIGINT and SIGTERM as a wish that is granted in order, instead of an exception at any place.

Process: driver.  Thread: main.
"""

import signal
from types import FrameType
from typing import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Counts the signals that ask for an end.

    The first one is noted, for whoever looks at ``received``. A second one raises KeyboardInterrupt
    once that is safe, which ``second_interrupts`` says; before, it is noted too.
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
            raise KeyboardInterrupt
