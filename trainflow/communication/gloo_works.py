"""Wait for what gloo does, and leave it behind when an abort doesn't end it.

When a connection closes, gloo (``Pair::signalException`` of its TCP transport) tells the operations
whose message has yet to begin, and none whose message is half sent or half received: that one
stands until its timeout. Once all connections of a group are closed nothing arrives any more, so
what stands (gloo's threads have not run from one look to the next) is left behind: it touches no
memory until it fails. What waits in gloo's queue behind it would begin then, and copy its own part
first; so its memory is taken from it. See docs/adr/0014-what-gloo-does-not-end.md.

Process: every rank.  Thread: training waits, control releases.
"""

import contextlib
import threading
import weakref
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication import os_threads

TRANSFERS = "gloo-transfers"  # a thread that waits for messages between two ranks

_LOOK_EVERY_S = 0.02
_MOST_BLIND_LOOKS = 25
_OUTLIVE_LOOK_S = 0.5
_THREAD_NAME = "pt_gloo_runloop"  # of those that run collectives


class Release:
    """Whether a group was aborted, and what becomes of its operations since.

    Args:
        threads: the kernel's numbers of those that began with the group, and perhaps others.

    Attributes:
        is_due: all connections are closed.
    """

    def __init__(self, threads: frozenset[int]):
        self.is_due = False
        self._threads = threads
        self._num_runs: int | None = None  # at the last look
        self._num_blind_looks = 0

    def check(self) -> None:
        """RuntimeError if the group was aborted."""
        if self.is_due:
            raise RuntimeError("the gloo group was aborted in the middle of a message")

    def look(self) -> bool:
        """Say whether the threads that run collectives have not run since the last look.

        One that is to get a processor is waited for, however long the machine lets it wait. Where
        they can't be found, they are given some looks' time.
        """
        before = self._num_runs
        try:
            self._num_runs = os_threads.num_runs(self._threads, _THREAD_NAME)
        except LookupError:
            self._num_blind_looks += 1
            return self._num_blind_looks > _MOST_BLIND_LOOKS
        return self._num_runs is not None and self._num_runs == before


class Collective:
    """What a thread of gloo's does, one after another of the same group.

    Args:
        work: gloo's own.
        lent: the tensors that gloo has, of the caller's memory; nobody else has these objects.
        release: of the group.
    """

    def __init__(self, work: dist.Work, lent: tuple[Tensor, ...], release: Release):
        self._work = work
        self._lent = lent
        self._release = release

    @property
    def is_over(self) -> bool:
        """Whether gloo is done with it, well or badly."""
        return self._work.is_completed()

    def wait(self) -> bool:
        """Block until it is over; RuntimeError if it failed, or was aborted."""
        while not self._work.is_completed():
            if self._release.is_due and self._release.look():
                self._take_back()
                self._release.check()
            with contextlib.suppress(RuntimeError):  # not yet, or it failed: looked at above
                self._work.wait(timedelta(seconds=_LOOK_EVERY_S))
        return self._work.wait()

    def outlive(self) -> None:
        """Block until it is over, if only by its timeout.

        Looks now and then: a thread that wakes up in gloo's own wait while Python exits takes the
        process down.
        """
        while not self._work.is_completed():
            SYSTEM_CLOCK.sleep(_OUTLIVE_LOOK_S)

    def _take_back(self) -> None:
        """Give gloo other memory, should this have yet to begin behind one that stands."""
        for tensor in self._lent:
            storage = torch.UntypedStorage(tensor.nbytes)  # not filled: no page is touched
            other = torch.empty(0, dtype=tensor.dtype)
            tensor.data = other.set_(storage, 0, tensor.shape, tensor.stride())


class Transfer:
    """A message between two ranks.

    Args:
        work: gloo's own.
        lent: the tensor that gloo has, of the caller's memory; nobody else has this object.
        release: of the group.
    """

    def __init__(self, work: dist.Work, lent: Tensor, release: Release):
        self._work = work
        self._lent = lent
        self._release = release
        self._over = threading.Event()
        self._error: RuntimeError | None = None

    def wait(self) -> bool:
        """Block until it is over; RuntimeError if it failed, or was aborted."""
        while not self._over.is_set():
            if self._release.is_due:  # nothing touches its memory, whether it is over or not
                self._lent.data = torch.empty(0, dtype=self._lent.dtype)  # nor keeps it
                self._release.check()
            self._over.wait(_LOOK_EVERY_S)
        if self._error is not None:
            raise self._error
        return True

    def outlive(self) -> None:
        """Block until it is over, if only by its timeout, in gloo's wait: it has no other."""
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._over.set()


class TransferWaiter:
    """Waits for messages in their order, in a thread: gloo's wait for one can't be ended."""

    def __init__(self, release: Release):
        self._release = release
        self._begun: SimpleQueue[Transfer | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, work: dist.Work, lent: Tensor) -> Transfer:
        """Begin to wait for gloo's ``work`` with ``lent``."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_outlive_all, args=(self._begun,), name=TRANSFERS, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._begun.put, None)
        transfer = Transfer(work, lent, self._release)
        self._begun.put(transfer)
        return transfer


def _outlive_all(begun: "SimpleQueue[Transfer | None]") -> None:
    while (transfer := begun.get()) is not None:
        transfer.outlive()
        del transfer  # not kept until there is another
