"""Signals that ask for an end: a run grants the wish in order, other commands clean up and leave.

Process: driver.  Thread: main.
"""

import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Never, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """What was asked of a process that ends in order.

    Attributes:
        by: the signal that has asked for an end; None while none has.
    """

    def __init__(self, numbers: Iterable[signal.Signals]):
        self.by: signal.Signals | None = None
        self._before = {number: signal.getsignal(number) for number in numbers}

    def install(self) -> None:
        """Take the signals, but for those that are ignored already."""
        self._handle(self._end)

    def heed_no_more(self) -> None:
        """Ignore them: all that is left to do is to clean up. Programs started then ignore them."""
        self._handle(signal.SIG_IGN)

    def give_back(self) -> None:
        """Have them do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, handler: Callable[[int, FrameType | None], Never] | signal.Handlers) -> None:
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:
                signal.signal(number, handler)

    def _end(self, number: int, _frame: FrameType | None) -> Never:
        self.heed_no_more()
        self.by = signal.Signals(number)
        if self.by is signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def ending_in_order(*, takes_interrupts: bool = False) -> Generator[Ending]:
    """Have SIGTERM and SIGHUP end what goes on as SIGINT does: what was begun is cleaned up.

    The process then leaves with 128 and the signal's number. Further ones don't disturb that. Who
    has a signal ignored, as nohup does, has it ignored here too.

    Args:
        takes_interrupts: SIGINT too is heeded once only, for where the cleaning up has its time: a
            second Ctrl-C doesn't cut it short.
    """
    ending = Ending((*_ENDINGS, *((signal.SIGINT,) if takes_interrupts else ())))
    ending.install()
    try:
        yield ending
    finally:
        ending.give_back()


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
