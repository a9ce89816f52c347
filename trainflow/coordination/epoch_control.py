"""From one epoch to the next: notices that one is broken, and sees the next one formed.

Process: coordinator.  Thread: its event loop; every method returns at once or awaits.
"""

import asyncio
import logging
import math
from collections.abc import Sequence

from ray.exceptions import RayError

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.background import Background
from trainflow.coordination.boundary_request import BoundaryRequest
from trainflow.coordination.candidacy import Candidacy
from trainflow.coordination.epoch_former import (
    FormedEpoch,
    form_epoch,
    note_formed,
    plan_once_parked,
    specify,
    tell_trouble,
)
from trainflow.coordination.epoch_troubles import EpochTroubles
from trainflow.coordination.forming_attempts import GIVEN_UP_AFTER_S, SEVERAL, FormingAttempts
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.membership import (
    Candidate,
    FormEpoch,
    PauseToGrow,
    Situation,
    WaitForWorkers,
    decide_move,
)
from trainflow.coordination.recovery_log import RecoveryLog
from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState, tell_no_state
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.coordination.world_hold import StateBehindError, WorldHold
from trainflow.epochs import EpochId, EpochSpec, Flag, MemberReport, RecoveryPlan

logger = logging.getLogger(__name__)


class EpochControl:
    """The current epoch of a run.

    Attributes:
        incarnation: of this coordinator; until it has taken office the newest in the record.
        members: worker ids of the current epoch, by rank.
        epoch: its id; None before the first.
        candidacy: who may be a member.
        is_open: epochs are formed; not before that of an earlier coordinator is taken over.
        running_since_s: CLOCK_MONOTONIC when the epoch was known to run; of one taken over -inf.
        attempts: to form the next one.
        troubles: hears of what breaks it beside deaths.
        superior: is told who is lost, and what ends the run.
    """

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        record: RunRecord,
        kept: KeptState,
        clock: Clock,
        *,
        superior: Superior,
    ):
        self.incarnation = record.newest_incarnation
        self.members: tuple[str, ...] = ()
        self.epoch: EpochId | None = None
        self.candidacy = Candidacy(job, pool, record)
        self._request = BoundaryRequest(pool)
        self._kept = kept
        self._job = job
        self._pool = pool
        self._record = record
        self._recovery = RecoveryLog(record, clock, job.training.max_steps)
        self._hold = WorldHold(self.candidacy, pool, record, clock)
        self._clock = clock
        self.superior = superior
        self.is_open = self._stop_asked = False
        self._broken = self._member_lost = self._pausing = self._forms_at_boundary = False
        self._counter = 0
        self.attempts = FormingAttempts()
        self._forming: asyncio.Task[None] | None = None
        # Members of the newest epoch, formed or not: once some were released into it, they may hold
        # the newest state, so the next epoch is made from them. One that is to begin at a boundary
        # is none before that: who is to leave has not, and may hold all the state there is.
        self._lineup: tuple[str, ...] = ()
        self.running_since_s = 0.0
        self._background = Background(self._on_error)
        self.troubles = EpochTroubles(self, pool, self._background, clock)
        self._settled = asyncio.Event()
        self._finished: set[str] = set()

    @property
    def state(self) -> RunState:
        """The run's state, as far as its epochs tell."""
        if self.epoch is None and not self._broken:
            return RunState.PENDING
        if self._recovery.is_waiting:
            return RunState.WAITING
        recovering = self._recovery.is_under_way or self._broken
        return RunState.RECOVERING if recovering else RunState.RUNNING

    @property
    def num_spares(self) -> int:
        """Warm workers without a rank."""
        return sum(candidate.worker_id not in self.members for candidate in self._available())

    def rank_of(self, worker_id: str) -> int | None:
        """Return a worker's rank in the current epoch; None for a spare."""
        return self.members.index(worker_id) if worker_id in self.members else None

    @property
    def is_whole(self) -> bool:
        """Whether the epoch runs, as far as is known, and no other one is being formed."""
        return self._forming is None and not self._broken

    @property
    def training(self) -> set[str]:
        """Members whose training function hasn't returned."""
        return set(self.members) - self._finished

    def all_finished(self) -> bool:
        """Whether every member's training function has returned."""
        return bool(self.members) and self._finished.issuperset(self.members)

    def on_finished(self, worker_id: str) -> None:
        """A member's training function has returned after the last step."""
        self._finished.add(worker_id)

    def left_for_s(self) -> dict[str, float]:
        """Return for how long members have been out of their epoch; empty where it runs on."""
        return self.attempts.left_for_s(self._clock.monotonic_s())

    def take_over(self, spec: EpochSpec, *, intact: bool, plan: RecoveryPlan | None = None) -> None:
        """Continue an epoch that an earlier coordinator formed.

        Args:
            spec: the epoch.
            intact: every member is there and trains, or hasn't said that it doesn't.
            plan: by which members were released; None: none has said that it was.
        """
        # Who released them may not have lived to say so: what they commit is of another history.
        if plan is not None and all(epoch != spec.epoch for epoch, _ in self._record.beginnings):
            self._kept.on_formed(plan, self._pool.nodes_of(spec.members))
            note_formed(self._job, plan, self._record, self._record.last_step)
        self._record.add_early_steps(spec.epoch)
        self.members = self._lineup = spec.members
        self.epoch = spec.epoch
        self._broken = self._member_lost = not intact
        self.running_since_s = -math.inf  # who has stood still since before may not be released
        if intact:
            text = f"took over epoch {spec.epoch}, whose {spec.world_size} members train on"
            self._record.add_event("taken_over", text, epoch=str(spec.epoch))
            self._kept.send_copies(spec, self._pool.nodes_of(spec.members))
            self._settled.set()
            self.troubles.on_running(spec.epoch)
        else:
            self._notice("an epoch was broken while there was no coordinator")

    def open(self) -> None:
        """From now on epochs are formed."""
        self.is_open = True
        self.advance()

    def close(self) -> None:
        """Form no more epochs."""
        self.is_open = False
        self.leave_epoch()

    def leave_epoch(self) -> None:
        """Ask nothing more of its members, and form no other for now."""
        self._request.end()
        if self._forming is not None:
            self._forming.cancel()

    # What happens

    def on_gone(self, entry: WorkerEntry, text: str) -> None:
        """A worker was lost."""
        if entry.worker_id in self.training - self._pool.left:
            self._broken = self._member_lost = True
            self._notice(text)
        self.advance()

    def on_step(self, report: StepReport) -> None:
        """A member committed a step."""
        self._record.add_step(report, lambda: self.num_spares)
        if report.joined is not None and self._recovery.on_joined(report):
            self._settled.set()
        # In the first step of an epoch every rank reports, and so says that all pause.
        if report.pausing:
            self.end_at_boundary(report.epoch)

    def end_at_boundary(self, epoch: EpochId) -> None:
        """Members stop between two steps, as they were asked to: form the next epoch there."""
        if epoch == self.epoch and self.is_whole:
            self._start_forming(self.candidacy.next_at_boundary(self._lineup), at_boundary=True)

    def advance(self) -> None:
        """Look at the situation and do what follows from it."""
        if not self.is_open or self._pool.have_stopped(self.members) or self.all_finished():
            return
        if self._forming is not None:
            if all(member in self._pool.entries for member in self.attempts.members):
                return
            self._forming.cancel()
            self._forming, self._broken = None, True
        lineup = self._lineup if self.members else ()
        move = decide_move(
            Situation(
                members=lineup,
                broken=self._broken,
                available=self._available(),
                minimum=self.candidacy.num_needed(self.members, self._finished),
                target=self.candidacy.at_most(lineup),
                pausing=self._pausing or self._stop_asked or self._hold.is_on,
                group_size=self._job.group_size,
            )
        )
        if self.members:
            self._recovery.note_move(move)
        match move:
            case FormEpoch(members):
                self._start_forming(members, at_boundary=False)
            case PauseToGrow():
                self._pause()
            case WaitForWorkers():
                self._settled.set()
            case _:
                pass

    def relieve(self, worker_id: str) -> bool:
        """Have a spare take a member's rank at the next step boundary; False if that can't be now.

        The member becomes the spare that is taken last.
        """
        may_leave = self.may_pause and not self._hold.is_on and worker_id in self.members
        return may_leave and self.candidacy.relieve(worker_id, self.members) and self.pause()

    def empty_nodes(self) -> bool:
        """Have ranks leave unfit nodes at the next step boundary; False if none can leave now."""
        may_leave = self.may_pause and self._hold.lets_leave(self.members)
        lineup = self.candidacy.next_at_boundary(self.members) if may_leave else self.members
        return lineup != self.members and self.pause()

    def pause(self) -> bool:
        """Have members stop at the next step boundary, and plan anew there; False if not now."""
        if may_pause := self.may_pause:
            self._pause()
        return may_pause

    @property
    def may_pause(self) -> bool:
        """Whether all train, and are not about to stop for something else."""
        busy = self._pausing or self._stop_asked or bool(self._finished)
        return self.is_open and self.is_whole and not busy

    def _pause(self) -> None:
        self._pausing = True
        self._request.begin(Flag.PAUSE, self.members)

    # Stopping

    def request_stop(self) -> bool:
        """Have members stop with their next commit, of this epoch or the next; False: none will."""
        self._stop_asked = True
        if self.epoch is not None and self.is_whole:
            self._request.begin(Flag.STOP, self.members)
        return self.epoch is not None

    async def wait_settled(self) -> None:
        """Wait until no recovery is under way, or none is possible without more workers."""
        await self._settled.wait()

    def _available(self) -> tuple[Candidate, ...]:
        return self.candidacy.available(self._lineup, is_first=self.epoch is None)

    def break_epoch(self, epoch: EpochId | None, text: str) -> None:
        """Form a new epoch of the same members, unless the broken one is past already."""
        is_over = self._broken or self._pool.have_stopped(self.members)
        if epoch != self.epoch or is_over or not self.is_open:
            return
        self._record.add_event("failure", text, epoch=str(epoch))
        self.superior.spend(text)
        self._broken = True
        self._notice(text)
        self.advance()

    def _notice(self, text: str) -> None:
        self._settled.clear()
        self._request.end()
        self._recovery.notice(text)
        if self._forming is not None and self._forms_at_boundary:  # which may never come
            self._forming.cancel()
            self._forming = None

    def _start_forming(self, members: tuple[str, ...], *, at_boundary: bool) -> None:
        self.leave_epoch()
        self._counter += 1
        spec = specify(
            EpochId(self.incarnation, self._counter),
            [self._pool.entries[member] for member in members],
            self._job,
            seconds_between_failures=self._record.seconds_between_failures(),
        )
        self._lineup = self._lineup if at_boundary else members
        self._forms_at_boundary = at_boundary
        self.attempts.begin(spec.epoch, members, self._clock.monotonic_s(), at_boundary=at_boundary)
        self._forming = self._background.start(self._form(spec, at_boundary=at_boundary))

    async def _form(self, spec: EpochSpec, *, at_boundary: bool) -> None:
        actors = {member: self._pool.entries[member].actor for member in spec.members}

        async def plan(reports: Sequence[MemberReport]) -> RecoveryPlan:
            known, lost = self._record.last_step, self._member_lost  # who leaves may be lost by now
            making = self._kept.plan(spec, reports, member_lost=lost, committed_step=known)
            made = await self._hold.look_at(
                making, spec, known, lambda: () if self._member_lost else self.members
            )
            self._lineup = spec.members
            return made

        before = self.members if at_boundary else ()
        try:
            formed = await form_epoch(
                spec,
                actors,
                plan_once_parked(spec, before, self._pool.entries, plan),
                at_boundary=at_boundary,
                record=self._record,
                now_s=self._clock.unix_s,
            )
        except StateBehindError as error:
            self._hold.begin(error, self.advance)
            self._start_forming(self.members, at_boundary=False)
        except NoLiveStateError as error:
            self._on_no_state(spec, error)
        except RayError as error:
            await self._retry_forming(spec, error)
        else:
            self._on_formed(formed)

    def _on_error(self, trace: str) -> None:
        self.superior.end(Ending(RunState.FAILED, f"no epoch can be formed any more:\n{trace}", 1))

    def _on_no_state(self, spec: EpochSpec, error: NoLiveStateError) -> None:
        """Every rank that held a state is gone; before the first commit nothing is lost by that."""
        self._forming = None
        if self._record.last_step > 0:
            self.superior.end(tell_no_state(str(error), stops=self._stop_asked))
            return
        cause = "it holds no state, and no step is committed: another one begins anew"
        self.superior.lose(spec.members, cause)

    async def _retry_forming(self, spec: EpochSpec, error: RayError) -> None:
        """A member failed while the epoch was formed; its death is usually heard of in a moment."""
        logger.info("epoch %s could not be formed: %s", spec.epoch, error)
        attempts, now_s = self.attempts, self._clock.monotonic_s()
        attempts.fail(now_s)
        what = f"no epoch could be formed in {attempts.num_failed} attempts"
        why = f"{GIVEN_UP_AFTER_S:.0f} s; last: {tell_trouble(error)}"
        if attempts.failing_for_s(now_s) > GIVEN_UP_AFTER_S:
            self.superior.end(Ending(RunState.FAILED, f"{what} within {why}", 1))
            return
        if attempts.num_failed >= SEVERAL:
            self._settled.set()  # others are started: one that is cut off can leave for them
        if attempts.num_failed == SEVERAL:
            text = f"{what}, and it is tried on for {why}"
            self._record.add_event("forming_fails", text, members=list(spec.members))
        await asyncio.sleep(attempts.pause_s)
        self._forming, self._broken = None, True
        self.advance()

    def _on_formed(self, formed: FormedEpoch) -> None:
        spec = formed.plan.spec
        self.members, self.epoch, self._forming = spec.members, spec.epoch, None
        self._broken = self._member_lost = self._pausing = False
        self.attempts.succeed()
        self.candidacy.on_formed()
        self.running_since_s = self._clock.monotonic_s()
        recovering = self._recovery.on_formed(formed)
        if not self._recovery.is_under_way:
            self._settled.set()
        self._kept.on_formed(formed.plan, self._pool.nodes_of(spec.members))
        told = self._job, formed.plan, self._record, formed.committed_step
        note_formed(*told, recovering=recovering)
        if self._stop_asked:
            self.request_stop()
        self.troubles.on_running(spec.epoch)
        self.advance()
