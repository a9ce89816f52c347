"""One epoch's group of ranks, in which a failure is data and never an exception.

A collective that fails inside autograd must not raise there: FSDP2 never recovers from it, and a
half-run backward leaves hooks in an unknown state. So every collective returns a `Pending`; after a
failure all of them, running and future, complete at once with garbage and say so through
``wait()``. Only the step decides what follows.

Process: every rank.  Thread: training issues and waits, control aborts.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from trainflow.communication.transport import Connector, Transport, Work
from trainflow.epochs import EpochId, EpochSpec
from trainflow.errors import CommunicationError

logger = logging.getLogger(__name__)

OnFailure = Callable[[EpochId, str], None]


class Pending:
    """A collective under way, or one that has already failed."""

    def __init__(self, group: "Group", work: Work | None):
        self._group = group
        self._work = work

    def wait(self) -> bool:
        """Block until done. True if the tensors hold the result, False if they hold garbage.

        Waits after a failure too: only then does the library no longer write to the tensors. What
        was aborted ends within milliseconds, or is left behind within a tenth of a second (later
        on a machine so loaded that the library's threads wait for a core).
        """
        if self._work is None:
            return False
        start_s = time.perf_counter()
        try:
            self._work.wait()
        except RuntimeError as error:
            self._group.fail(str(error))
        self._work = None
        self._group.waited_s += time.perf_counter() - start_s
        return self._group.failure is None


class Group:
    """The ranks of one epoch, connected.

    Attributes:
        spec: who they are.
        rank: this process's place among them.
        failure: why the group is broken, or None. Once set it stays: a new epoch has a new group.
        sequence: number of collectives issued; equal on all ranks that have come equally far.
        waited_s: seconds that this rank has waited for collectives so far.
    """

    def __init__(self, spec: EpochSpec, rank: int, transport: Transport, on_failure: OnFailure):
        self.spec = spec
        self.rank = rank
        self.failure: str | None = None
        self.sequence = 0
        self.waited_s = 0.0
        self._transport = transport
        self._on_failure = on_failure
        self._failure_lock = threading.Lock()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.spec.world_size

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Sum ``tensor`` over ranks, in place."""
        return self._start(lambda: self._transport.all_reduce(tensor))

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        """Fill ``output`` (world_size * n elements) with every rank's ``tensor`` (n), by rank."""
        return self._start(lambda: self._transport.all_gather(output, tensor))

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Pending:
        """Send the r-th equal part of ``tensor`` to rank r; ``output`` holds parts by sender."""
        return self._start(lambda: self._transport.all_to_all(output, tensor))

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Pending:
        """As `all_to_all`, in equal parts among ``ranks`` alone; every rank issues it at once.

        Args:
            output: parts by sender.
            tensor: the i-th part of it goes to ``ranks[i]``.
            ranks: ascending, this one among them; the others have the same ones.
        """
        return self._start(lambda: self._transport.all_to_all_among(output, tensor, ranks))

    def send(self, tensor: Tensor, to_rank: int) -> Pending:
        """Send ``tensor`` to one rank."""
        return self._start(lambda: self._transport.send(tensor, to_rank))

    def recv(self, tensor: Tensor, from_rank: int) -> Pending:
        """Receive into ``tensor`` from one rank."""
        return self._start(lambda: self._transport.recv(tensor, from_rank))

    def fail(self, reason: str) -> None:
        """Mark the group broken, tell whoever coordinates once, and release all that wait on it."""
        with self._failure_lock:
            if self.failure is not None:
                return
            self.failure = reason
        try:
            self._transport.abort()
        finally:  # or the others would wait for this rank, and nobody would know
            self._on_failure(self.spec.epoch, reason)

    def abort(self, reason: str) -> None:
        """Release every thread that waits in this group; nobody is told. Any thread, idempotent."""
        with self._failure_lock:
            if self.failure is None:
                self.failure = reason
        self._transport.abort()

    def _start(self, issue: Callable[[], Work]) -> Pending:
        self.sequence += 1
        if self.failure is not None:
            return Pending(self, None)
        try:
            return Pending(self, issue())
        except RuntimeError as error:
            self.fail(str(error))
            return Pending(self, None)


def wait_all(pending: Sequence[Pending], after_each: Callable[[], None] = lambda: None) -> bool:
    """Wait for each, whatever became of those before; True if all hold their results."""
    succeeded = True
    for one in pending:
        succeeded = one.wait() and succeeded
        after_each()
    return succeeded


def connect_group(
    spec: EpochSpec, rank: int, connect: Connector, *, on_failure: OnFailure, timeout_s: float
) -> Group:
    """Meet the other members of ``spec`` and connect to them.

    Args:
        spec: the epoch; names the members and the rendezvous store.
        rank: this process's rank in it.
        connect: makes the transport.
        on_failure: called once, from the thread that noticed, when a collective fails.
        timeout_s: how long to wait for the other members.

    Raises:
        CommunicationError: a member did not come in time, or the store is gone.
    """
    try:
        store = TCPStore(
            spec.store_host,
            spec.store_port,
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
        transport = connect(PrefixStore(str(spec.epoch), store), rank, spec.world_size)
    except RuntimeError as error:  # DistStoreError and DistNetworkError are RuntimeErrors
        raise CommunicationError(
            f"epoch {spec.epoch}: rank {rank} could not connect: {error}"
        ) from error
    return Group(spec, rank, transport, on_failure)
