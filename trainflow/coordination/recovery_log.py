"""Follow a recovery from the first word of a loss to the step that ends it, and record it.

What ranks did is told by their own clocks, as exactly as these agree with the coordinator's. Where
one can't be right, its step was when it was heard of, and its state was there as long before that
as the rank says.

Process: coordinator.  Thread: its event loop.
"""

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.coordination.epoch_former import FormedEpoch
from trainflow.coordination.membership import Move, WaitForWorkers
from trainflow.coordination.moments import place_moment
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Loss
from trainflow.epochs import INITIAL_EPOCH, EpochSpec


class RecoveryLog:
    """At most one recovery is under way; what is lost meanwhile becomes part of it.

    Members that are fast commit a step of an epoch, and say so, before the last call returns that
    releases the others into it, and so before the epoch is known to have begun.

    Attributes:
        is_waiting: it can't go on before there are more workers.
    """

    def __init__(self, record: RunRecord, clock: Clock, max_steps: int):
        """Make a log of no recovery yet.

        Args:
            record: takes what is recorded.
            clock: tells when a loss is heard of.
            max_steps: after which there is none whose commit could end a recovery.
        """
        self._record = record
        self._max_steps = max_steps
        self._clock = clock
        self.is_waiting = False
        self._loss: Loss | None = None
        self._epoch = INITIAL_EPOCH
        self._early: list[tuple[StepReport, float]] = []  # and when each was heard of

    @property
    def is_under_way(self) -> bool:
        """Whether something was lost and not every rank has committed a step since."""
        return self._loss is not None

    def notice(self, cause: str) -> None:
        """Something was lost."""
        if self._loss is None:
            self._loss = Loss(self._clock.unix_s(), [])
        self._loss.causes.append(cause)

    def note_move(self, move: Move) -> None:
        """Say once of a run that was training that it waits."""
        was_waiting, self.is_waiting = self.is_waiting, isinstance(move, WaitForWorkers)
        if isinstance(move, WaitForWorkers) and not was_waiting:
            text = f"training waits for workers: {move.num_available} of {move.num_needed} are warm"
            self._record.add_event("waiting", text)

    def on_formed(self, formed: FormedEpoch) -> bool:
        """An epoch has begun that may end the recovery; returns whether one was under way."""
        self._epoch, early, self._early = formed.plan.spec.epoch, self._early, []
        loss = self._loss
        if loss is None:
            return False
        base_step = formed.plan.base.step
        loss.asked_at_s, loss.begun_at_s = formed.asked_at_s, formed.begun_at_s
        loss.planned_at_s = formed.planned_at_s
        loss.freed_s = max(report.freed_s for report in formed.reports)
        loss.connected_s = max(report.connected_s for report in formed.reports)
        loss.parked_s = max(report.parked_s for report in formed.reports)
        loss.base_step = base_step
        loss.steps_lost = max(0, formed.committed_step - base_step)
        loss.awaited = frozenset(range(formed.plan.spec.world_size))
        for report, heard_at_s in early:
            self._take(report, heard_at_s)
        if base_step >= self._max_steps:
            self._loss, loss.healed_at_s = None, loss.begun_at_s
            what = f"{formed.plan.spec.world_size} go on after the last step, {base_step}"
            self._write(loss, what, formed.plan.spec, loss.begun_at_s)
        return True

    def on_joined(self, report: StepReport) -> bool:
        """A rank has committed its first step of the epoch; True if it was the last to do so."""
        return self._take(report, self._clock.unix_s())

    def _take(self, report: StepReport, heard_at_s: float) -> bool:
        loss = self._loss
        assert report.joined is not None, "the caller looked"
        if report.epoch > self._epoch:
            self._early.append((report, heard_at_s))
        if loss is None or report.epoch != self._epoch or report.rank not in loss.awaited:
            return False
        since_s = loss.planned_at_s
        committed_at_s = place_moment(report.committed_at_s, since_s, heard_at_s)
        wrong_by_s = report.committed_at_s - committed_at_s  # 0 if that can be right
        healed_at_s = max(since_s, report.joined.healed_at_s - wrong_by_s)
        loss.healed_at_s = max(loss.healed_at_s, min(healed_at_s, committed_at_s))
        loss.awaited -= {report.rank}
        if loss.awaited:
            return False
        self._loss = None
        what = f"step {report.step} committed by all of {report.world_size}"
        self._write(loss, what, report, committed_at_s)
        return True

    def _write(
        self, loss: Loss, what: str, of: StepReport | EpochSpec, committed_at_s: float
    ) -> None:
        took_s = committed_at_s - loss.noticed_at_s
        self._record.add_event(
            "recovered",
            f"{what}, {took_s:.2f} s after the loss was noticed",
            epoch=str(of.epoch),
            world_size=of.world_size,
            causes=loss.causes,
            noticed_at_s=loss.noticed_at_s,
            asked_at_s=loss.asked_at_s,
            begun_at_s=loss.begun_at_s,
            healed_at_s=loss.healed_at_s,
            committed_at_s=committed_at_s,
            freed_s=loss.freed_s,
            connected_s=loss.connected_s,
            parked_s=loss.parked_s,
            base_step=loss.base_step,
            steps_lost=loss.steps_lost,
        )
