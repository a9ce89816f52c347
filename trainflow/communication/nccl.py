"""NCCL as a transport: CUDA tensors between GPUs.

Left to itself torch waits for NCCL on the GPU only, and a watchdog thread ends the process when a
collective fails. Here a failure has to be data. So there is no watchdog, and ``wait`` blocks the
thread until the collective is over, an abort included: what it vouches for is there, and what was
aborted is never used.

An abort takes NCCL half a second to a second, as it waits for threads of its own that look up every
half second. Collectives end at its beginning, and the next group can be made meanwhile (of one rank
on an H100 in 20 to 30 ms, with NCCL 2.28). So only those are waited for.

Process: every rank.  Thread: connected by control, used by training, aborted by control.
Ranks: all of an epoch connect together.
"""

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.communication.process_group import ProcessGroupTransport
from trainflow.communication.transport import Work

# Read by each group as it is made. Blocking wait is what leaves the watchdog out, and with it the
# thread that reads the rendezvous store, which may be gone; 0 is NoHandling, should one run anyhow.
_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
_POLL_EVERY_S = 50e-6
_ABORTED_WITHIN_S = 10.0


logger = logging.getLogger(__name__)


def _start_thread(work: Callable[[], None]) -> None:
    # Not a daemon: a process that leaves waits for it.
    threading.Thread(target=work, name="nccl abort").start()


class NcclTransport(ProcessGroupTransport):
    """One epoch's NCCL group on one device."""

    def __init__(
        self,
        group: "dist.ProcessGroupNCCL",
        *,
        collective_timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
        start: Callable[[Callable[[], None]], None] = _start_thread,
    ):
        super().__init__(group)
        self._start = start
        self.collective_timeout_s = collective_timeout_s
        self.clock = clock
        self.aborted_at_s: float | None = None
        self._is_aborted = threading.Event()
        self._newest: dist.Work | None = None

    def _watch(self, work: dist.Work, *lent: Tensor) -> Work:
        del lent
        self._newest = work
        return _BlockingWork(work, self)

    def abort(self) -> None:
        """Have this group's communicators aborted, once; returns when its collectives have ended.

        The communicators may not be gone by then.
        """
        if self.aborted_at_s is None:
            self.aborted_at_s = self.clock.monotonic_s()  # first: what ends from now on is void
            self._start(self._abort)
            deadline_s = self.aborted_at_s + _ABORTED_WITHIN_S
            while self._writes() and self.clock.monotonic_s() < deadline_s:
                self.clock.sleep(_POLL_EVERY_S)

    def _writes(self) -> bool:
        """Tell whether a collective may still write to memory; they end in their order."""
        newest = self._newest
        return not (newest is None or self._is_aborted.is_set() or newest.is_completed())

    def _abort(self) -> None:
        try:
            self._group.abort()
        except RuntimeError as error:  # whoever waits for a collective gives it up by itself
            logger.warning("NCCL could not abort a group: %s", error)
        finally:
            self._is_aborted.set()


class _BlockingWork:
    """A collective whose ``wait`` returns once it is over on the GPU."""

    def __init__(self, work: dist.Work, transport: NcclTransport):
        self._work = work
        self._transport = transport
        self._started_at_s = transport.clock.monotonic_s()

    def wait(self) -> bool:
        """Poll until the GPU is done with it; RuntimeError if it failed, or was aborted."""
        clock = self._transport.clock
        while not self._work.is_completed():
            if clock.monotonic_s() > self._deadline_s():
                raise RuntimeError("an NCCL collective did not end in time")
            clock.sleep(_POLL_EVERY_S)
        if self._transport.aborted_at_s is not None:
            raise RuntimeError("the NCCL group was aborted")
        return self._work.wait()  # raises what NCCL has found; makes the stream wait for nothing

    def _deadline_s(self) -> float:
        aborted_at_s = self._transport.aborted_at_s
        if aborted_at_s is not None:
            return aborted_at_s + _ABORTED_WITHIN_S
        return self._started_at_s + self._transport.collective_timeout_s


class NcclConnector:
    """Connects NCCL transports on this process's current device."""

    def __init__(self, device: torch.device, *, collective_timeout_s: float):
        self._device = device
        self._collective_timeout_s = collective_timeout_s

    def __call__(self, store: Store, rank: int, world_size: int) -> NcclTransport:
        """Connect eagerly, so that no rank meets the store again in a step."""
        os.environ.update(_ENVIRONMENT)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self._collective_timeout_s)  # noqa: SLF001
        group = dist.ProcessGroupNCCL(store, rank, world_size, options)
        group.eager_connect_single_device(self._device)
        return NcclTransport(group, collective_timeout_s=self._collective_timeout_s)
