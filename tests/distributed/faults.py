"""What can go wrong in a rank, and exactly where.

Faults enter at two seams of the product: the transport, which sees every collective, and the
stamps, which see every change of phase.

Process: every rank.  Thread: training.
"""

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.commit_record import RECORD_BYTES
from trainflow.communication.transport import Connector, Transport, Work
from trainflow.epochs import EpochId, Phase

WAIT_S = 20.0
LARGE_BYTES = 64 * 1024


class Where(StrEnum):
    """A place in a rank's life."""

    IN_MICROBATCH = "in_microbatch"
    IN_SECOND_MICROBATCH = "in_second_microbatch"
    IN_BACKWARD = "in_backward"
    IN_SUM = "in_sum"
    BETWEEN_HOPS = "between_hops"
    BEFORE_RECORD = "before_record"
    AFTER_RECORD = "after_record"
    IN_OPTIMIZER = "in_optimizer"
    IN_TAIL = "in_tail"
    IN_HEALING = "in_healing"
    IN_RESTORING = "in_restoring"
    IN_DEALING = "in_dealing"
    IN_ADDING_UP = "in_adding_up"
    DEALT_OUT = "dealt_out"


class Act(StrEnum):
    """What happens there: the process dies, is stopped, loses what it was sent, or a bit flips.

    Or it comes so late that its group is over by then.
    """

    KILL = "kill"
    STOP = "stop"
    DROP = "drop"
    FLIP = "flip"
    LATE = "late"


@dataclass(frozen=True)
class Fault:
    """``worker_id`` fails at ``where`` in ``step``.

    In healing and restoring that is the last committed step, also of a worker that has yet to be
    given the state.

    ``once_begun`` names workers that have begun that step before anything happens, ``once_applied``
    those that have applied it. Without them a rank may be a step behind, in the last one's tail.
    """

    worker_id: str
    step: int
    where: Where
    act: Act = Act.KILL
    once_applied: tuple[str, ...] = ()
    once_begun: tuple[str, ...] = ()


def fail_at(
    rank: int,
    step: int,
    where: Where,
    act: Act = Act.KILL,
    *,
    once_applied: tuple[int, ...] = (),
    once_begun: tuple[int, ...] = (),
) -> Fault:
    """Let the worker that begins with ``rank`` fail."""
    applied, begun = (tuple(f"w{i}" for i in others) for others in (once_applied, once_begun))
    return Fault(f"w{rank}", step, where, act, applied, begun)


class Injector:
    """Follows one rank's progress and strikes when a fault's place is reached."""

    def __init__(
        self, worker_id: str, faults: Sequence[Fault], directory: Path, grows_after: int | None
    ):
        """Follow a rank.

        Args:
            worker_id: its worker's.
            faults: of all ranks.
            directory: of the run.
            grows_after: a step after which a spare is first seen; ranks go no further than the
                next one before they have been asked to pause for it. None: none is late.
        """
        self._worker_id = worker_id
        self._waits_in = None if grows_after is None else grows_after + 2
        self._faults = [fault for fault in faults if fault.worker_id == worker_id]
        self._directory = directory
        self.phase = Phase.STARTING
        self.adds_up = False
        self.step = 0
        self.num_microbatches = 0
        self.epoch = EpochId(0, 0)
        self.group_is_over = threading.Event()

    def enter(self, phase: Phase, step: int, epoch: EpochId) -> None:
        """The training thread changed its phase."""
        applied = self.applies_with(phase)
        self.adds_up = self.phase is Phase.SNAPSHOT and phase is Phase.COMMUNICATE
        self.phase, self.step, self.epoch = phase, step, epoch
        if applied and self.is_real:
            self._mark("applied", step, self._worker_id).touch()
        if phase is Phase.DATA and self.is_real:
            self._mark("begun", step, self._worker_id).touch()
            if step == self._waits_in:
                self._wait_for([asked_mark(self._directory)])
        place = {
            Phase.COMPUTE: Where.IN_MICROBATCH,
            Phase.OPTIMIZER: Where.IN_OPTIMIZER,
            Phase.USER: Where.IN_TAIL,
            Phase.RESTORING: Where.IN_RESTORING,
        }
        if phase in place:
            self.reach(place[phase])
        self.num_microbatches += phase is Phase.COMPUTE
        if phase is Phase.COMPUTE and self.num_microbatches == 3:  # each is stamped twice
            self.reach(Where.IN_SECOND_MICROBATCH)
        elif phase not in {Phase.COMPUTE, Phase.DATA}:
            self.num_microbatches = 0

    def applies_with(self, phase: Phase) -> bool:
        """Whether a rank that enters this phase has just applied a step, and copied it if due."""
        return phase is Phase.USER and self.phase in {Phase.OPTIMIZER, Phase.SNAPSHOT}

    def reach(self, where: Where) -> None:
        """Strike if a fault lies here. A dropped message shows as a failed collective."""
        fault = self._find(where)
        if fault is not None:
            self._strike(fault)

    def flips(self, where: Where) -> bool:
        """Whether a bit flips here."""
        fault = self._find(where)
        return fault is not None and fault.act is Act.FLIP

    def _find(self, where: Where) -> Fault | None:
        """Return a fault that lies here; it is there once."""
        for fault in self._faults:
            if (fault.where, fault.step) == (where, self.step) and self.is_real:
                self._faults.remove(fault)
                return fault
        return None

    @property
    def is_real(self) -> bool:
        """Whether this is an epoch of the run, and no rehearsal."""
        return self.epoch.incarnation > 0

    def _strike(self, fault: Fault) -> None:
        marks = [self._mark("applied", fault.step, each) for each in fault.once_applied]
        marks += [self._mark("begun", fault.step, each) for each in fault.once_begun]
        self._wait_for(marks)
        if fault.act is Act.DROP:
            raise RuntimeError("dropped")
        if fault.act is Act.LATE:
            assert self.group_is_over.wait(WAIT_S), "nobody ended the group"
            return
        os.kill(os.getpid(), signal.SIGKILL if fault.act is Act.KILL else signal.SIGSTOP)

    def _wait_for(self, marks: Sequence[Path]) -> None:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WAIT_S
        while not all(mark.exists() for mark in marks):
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"nobody made {marks}"
            SYSTEM_CLOCK.sleep(0.002)

    def _mark(self, what: str, step: int, worker_id: str) -> Path:
        return self._directory / f"{worker_id}-{what}-{step}"


def asked_mark(directory: Path) -> Path:
    """Return the file that is there once a rank has been asked to pause."""
    return directory / "asked"


class FaultyTransport:
    """A transport that knows where a rank is when it communicates."""

    def __init__(self, inner: Transport, injector: Injector):
        self._inner = inner
        self._injector = injector
        self._in_hop_1: set[tuple[int, int]] = set()  # where the messages of a quantised sum lie

    def all_reduce(self, tensor: Tensor) -> Work:
        """A gradient bucket: during backward, unless it is among the last; or residuals."""
        work = self._inner.all_reduce(tensor)
        if self._injector.phase is Phase.HEALING:
            self._injector.reach(Where.IN_DEALING)
        if self._injector.adds_up:
            self._injector.reach(Where.IN_ADDING_UP)
        if self._injector.phase is Phase.COMPUTE:
            self._injector.reach(Where.IN_BACKWARD)
            if self._injector.flips(Where.IN_SUM):
                return _Flipped(work, tensor)
        return work

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        """A commit record, if it is that long, and during commit; or all have a share."""
        if self._injector.adds_up:
            self._injector.reach(Where.DEALT_OUT)
        if self._injector.phase is not Phase.COMMIT or tensor.numel() != RECORD_BYTES:
            return self._inner.all_gather(output, tensor)
        self._injector.reach(Where.BEFORE_RECORD)
        work = self._inner.all_gather(output, tensor)
        return _AfterRecord(work, self._injector)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        """A quantised bucket's hop 1 or 2: memory that it is in twice is free after that."""
        messages = output.data_ptr(), tensor.data_ptr()
        if tensor.dtype is torch.uint8 and messages in self._in_hop_1:
            self._injector.reach(Where.BETWEEN_HOPS)
        self._in_hop_1 ^= {messages}
        work = self._inner.all_to_all(output, tensor)
        if self._injector.phase is Phase.COMPUTE:
            self._injector.reach(Where.IN_BACKWARD)
        return work

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Work:
        """A hierarchical sum's hop: within the node if it isn't quantised, else a later one."""
        if tensor.dtype is torch.uint8:
            self._injector.reach(Where.BETWEEN_HOPS)
        work = self._inner.all_to_all_among(output, tensor, ranks)
        if tensor.dtype is not torch.uint8 and self._injector.phase is Phase.COMPUTE:
            self._injector.reach(Where.IN_BACKWARD)
        return work

    def send(self, tensor: Tensor, to_rank: int) -> Work:
        """Healing somebody; struck when a large part of the state has been sent, but not all."""
        work = self._inner.send(tensor, to_rank)
        if tensor.nbytes <= LARGE_BYTES:
            return work
        work.wait()
        self._injector.reach(Where.IN_HEALING)
        return _Sent()

    def recv(self, tensor: Tensor, from_rank: int) -> Work:
        """Being healed; struck with half of the state received."""
        work = self._inner.recv(tensor, from_rank)
        if tensor.numel() > 1:
            self._injector.reach(Where.IN_HEALING)
        return work

    def abort(self) -> None:
        """Not a place of its own."""
        self._inner.abort()
        self._injector.group_is_over.set()


class _Sent:
    """A message that is gone; gloo's own work can't be waited for twice."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class _Flipped:
    """A sum, one bit of which is another on this rank."""

    def __init__(self, work: Work, tensor: Tensor):
        self._work = work
        self._tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self._work.wait()
        self._tensor.view(-1).view(torch.int32)[0] ^= 1 << 22
        return done


class _AfterRecord:
    """The record's all_gather: strikes once this rank has everybody's."""

    def __init__(self, work: Work, injector: Injector):
        self._work = work
        self._injector = injector

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self._work.wait()
        self._injector.reach(Where.AFTER_RECORD)
        return done


def make_faulty(connect: Connector, injector: Injector) -> Any:
    """Wrap a connector so that its transports carry faults."""

    def connect_with_faults(store: Any, rank: int, world_size: int) -> FaultyTransport:
        injector.group_is_over.clear()
        return FaultyTransport(connect(store, rank, world_size), injector)

    return connect_with_faults
