"""Where the control thread hands epochs to the training thread.

The control side forms an epoch in two calls. ``form`` aborts the old group, connects the new one
and waits until the training thread stands still; it may be called again, for a newer epoch, while
an older call is under way, and the older one then fails. ``begin`` releases the training thread
into the formed epoch. The training side makes one call: ``park``.

Process: every worker.
Thread: control calls form, begin, request, wait_standing, close; training calls park, leave.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.group import Group
from trainflow.computation.reports import StepReport
from trainflow.epochs import (
    WHOLE,
    EpochId,
    EpochSpec,
    Flag,
    MemberReport,
    RecoveryPlan,
    ShardId,
    Version,
)
from trainflow.errors import CoordinationError

Connect = Callable[[EpochSpec, int], Group]


class SessionClosed(BaseException):
    """The run is over for this worker: raised out of the training function's loop."""


@dataclass(frozen=True)
class Standing:
    """What the training thread holds when it parks.

    Attributes:
        version: the newest state it holds whole, or None.
        tail_done: it has run the code after that version's commit to its end.
        finished: it knows that every rank has left the last step.
        shard: which part of that version it holds.
        steps: that it has committed on the way there, oldest first.
    """

    version: Version | None
    tail_done: bool = False
    finished: bool = False
    shard: ShardId = WHOLE
    steps: tuple[StepReport, ...] = ()

    def steps_up_to(self, base: Version, after: int) -> tuple[StepReport, ...]:
        """Return what there is to say of the steps that led to ``base``, if it has committed that.

        Args:
            base: the last of them made it.
            after: only later ones.
        """
        if all(each.version != base for each in self.steps):
            return ()
        return tuple(each for each in self.steps if after < each.step <= base.step)

    def report(
        self,
        worker_id: str,
        *,
        freed_s: float = 0.0,
        connected_s: float = 0.0,
        parked_s: float = 0.0,
    ) -> MemberReport:
        """Return it as its worker tells it, with what `MemberReport` says of the times."""
        return MemberReport(
            worker_id,
            self.version,
            tail_done=self.tail_done,
            finished=self.finished,
            shard=self.shard,
            freed_s=freed_s,
            connected_s=connected_s,
            parked_s=parked_s,
        )


@dataclass(frozen=True)
class Assignment:
    """An epoch to take part in. ``begun_at_s`` is CLOCK_REALTIME."""

    group: Group
    plan: RecoveryPlan
    begun_at_s: float


class EpochGate:
    """The meeting point of one worker's two threads."""

    def __init__(self, worker_id: str, connect: Connect):
        self._worker_id = worker_id
        self._connect = connect
        self._changed = threading.Condition()
        self._target: EpochSpec | None = None
        self._plan: RecoveryPlan | None = None
        self._group: Group | None = None
        self._standing: Standing | None = None
        self._assignment: Assignment | None = None
        self._requests = Flag.NONE
        self._has_parked = False
        self._closed = False

    # Control side

    def form(self, spec: EpochSpec, *, at_boundary: bool = False) -> MemberReport:
        """Leave whatever epoch there is, connect for ``spec`` and wait until training stands still.

        Args:
            spec: the epoch to form.
            at_boundary: let the training thread park by itself first (it was asked to pause), so
                that no step is abandoned.

        Raises:
            CoordinationError: a newer epoch is already being formed, or training has left for
                good, or the session is closed.
            CommunicationError: the members could not be connected.
        """
        start_s = time.monotonic()
        with self._changed:
            if self._closed or (self._target is not None and spec.epoch <= self._target.epoch):
                raise CoordinationError(f"epoch {spec.epoch} is out of date; at {self._latest()}")
            self._target, self._plan = spec, None
            self._assignment = None
            self._changed.notify_all()
            if at_boundary:
                self._changed.wait_for(lambda: self._standing or self._is_over(spec.epoch))
            self._require_current(spec.epoch)
            old = self._group
        if old is not None:
            old.abort(f"superseded by epoch {spec.epoch}")
        freed_s = time.monotonic() - start_s
        group = self._connect(spec, spec.rank_of(self._worker_id))
        connected_s = time.monotonic() - start_s
        with self._changed:
            if self._is_over(spec.epoch):
                group.abort(f"superseded by epoch {self._latest()}")
            self._require_current(spec.epoch)
            self._group = group
            self._changed.wait_for(lambda: self._standing or self._is_over(spec.epoch))
            self._require_current(spec.epoch)
            standing = self._standing
            assert standing is not None, "waited for"
            return standing.report(
                self._worker_id,
                freed_s=freed_s,
                connected_s=connected_s,
                parked_s=time.monotonic() - start_s,
            )

    def begin(self, plan: RecoveryPlan) -> None:
        """Release the training thread into the formed epoch.

        Raises:
            CoordinationError: that epoch is not the one that was formed last.
        """
        with self._changed:
            epoch = plan.spec.epoch
            if self._group is None or self._group.spec.epoch != epoch or self._is_over(epoch):
                raise CoordinationError(f"epoch {epoch} is out of date; at {self._latest()}")
            self._requests = Flag.NONE
            self._plan = plan
            self._assignment = Assignment(self._group, plan, SYSTEM_CLOCK.unix_s())
            self._changed.notify_all()

    def request(self, flag: Flag) -> None:
        """Carry ``flag`` to all ranks with the next commit of this epoch."""
        with self._changed:
            self._requests |= flag

    def wait_standing(self) -> None:
        """Block until the training thread stands still, or the session is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._standing or self._closed)

    def close(self) -> None:
        """End the session: whatever training waits for, it gets `SessionClosed`."""
        with self._changed:
            self._closed = True
            group = self._group
            self._changed.notify_all()
        if group is not None:
            group.abort("session closed")

    def take_requests(self) -> Flag:
        """Return what this rank is asked to tell the others; a checkpoint is asked for but once."""
        with self._changed:
            requests = self._requests
            self._requests &= ~Flag.CHECKPOINT
            return requests

    @property
    def has_parked(self) -> bool:
        """Whether the training thread has ever reached the steps."""
        with self._changed:
            return self._has_parked

    def wait_parked(self) -> None:
        """Block until the training thread has reached the steps, or the session is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_parked or self._closed)

    @property
    def standing(self) -> Standing | None:
        """What the training thread holds, if it is parked."""
        with self._changed:
            return self._standing

    @property
    def spec(self) -> EpochSpec | None:
        """The newest epoch that this worker was asked to form, connected for it or not yet."""
        with self._changed:
            return self._target

    @property
    def has_begun(self) -> bool:
        """Whether training was released into that epoch."""
        with self._changed:
            return self._plan is not None

    @property
    def plan(self) -> RecoveryPlan | None:
        """How training was released into that epoch; None if it wasn't."""
        with self._changed:
            return self._plan

    @property
    def failure(self) -> str | None:
        """Why the current group is broken, or None."""
        with self._changed:
            return None if self._group is None else self._group.failure

    def _is_over(self, epoch: EpochId) -> bool:
        return self._closed or self._target is None or self._target.epoch != epoch

    def _latest(self) -> EpochId | None:
        return None if self._target is None else self._target.epoch

    def _require_current(self, epoch: EpochId) -> None:
        if self._is_over(epoch):
            raise CoordinationError(f"epoch {epoch} was superseded by {self._latest()}")

    # Training side

    def park(self, standing: Standing) -> Assignment:
        """Stand still until an epoch begins; returns it once.

        Raises:
            SessionClosed: there will be none.
        """
        with self._changed:
            self._standing = standing
            self._has_parked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._assignment or self._closed)
            self._standing = None
            if self._closed or self._assignment is None:
                raise SessionClosed
            assignment, self._assignment = self._assignment, None
            return assignment

    def leave(self) -> None:
        """Take part in no epoch any more; its group stays, as others may yet read from it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
