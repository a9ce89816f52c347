"""What makes a step all or nothing.

Process: every rank.  Thread: training.  Ranks: all run the same step of the same epoch.
Blocks: in ``commit``, until every rank has come or the epoch is aborted.
Fails: `StepAborted` on entry to microbatches, backward and commit, never inside autograd.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication import commit_record
from trainflow.communication.commit_record import CommitDecision, CommitRecord, Scalar
from trainflow.communication.compression import kernels
from trainflow.communication.group import Group
from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.aborted import StepAborted, StepMode
from trainflow.computation.evaluation import gather_numbers
from trainflow.computation.optimizer_update import Scales, update_models
from trainflow.computation.outcome import (
    Outcome,
    describe_difference,
    describe_scaling,
    describe_sums,
    keep_choices,
)
from trainflow.computation.rank_0_values import clip_alike, take_from_rank_0
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import AllStop
from trainflow.computation.residual_state import ResidualState
from trainflow.computation.seeding import derive_seed, seed_everything
from trainflow.computation.snapshot_cadence import SnapshotCadence, has_checkpoint
from trainflow.computation.spot_check import SpotCheck
from trainflow.computation.step_times import StepTimes
from trainflow.computation.step_verdict import StepVerdict, judge_step, require_finite_steps
from trainflow.computation.tensor_digests import StepDigests
from trainflow.computation.training_state import Committed, StepStart, TrainingState
from trainflow.data.batch import Batch
from trainflow.data.batch_scaling import scale_step
from trainflow.data.order import Microbatch
from trainflow.epochs import Flag, Phase, Version
from trainflow.errors import TrainingError

logger = logging.getLogger(__name__)

_BEFORE_ALL = -1  # in place of a microbatch: random numbers drawn before the first one
_AFTER_ALL = -2  # and by what a commit moves


class Transaction:
    """One try of one step on one rank."""

    def __init__(self, context: RankContext, state: TrainingState, group: Group, mode: StepMode):
        self._context = context
        self._state = state
        self._group = group
        self._mode = mode
        base = 0 if state.version is None else state.version.step
        self.number = base if mode is StepMode.TAIL else base + 1
        self.outcome: Outcome | None = None
        self.reached: Outcome | None = None  # the same, also where it is not known to be safe
        self.left_whole = False
        self._start: StepStart | None = None
        self._times = StepTimes(group, context.device)
        self._weight = 0.0
        self._scale: float | None = None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=context.device)
        self._scalars: dict[str, tuple[Tensor, float]] = {}
        self._backward_due = False
        self._is_sharded = context.job.parallel.is_sharded
        self._is_padding = False
        self._spot = SpotCheck(context, group, self.number)

    def enter(self) -> None:
        """Note what an abandoned try must put back, and forget old gradients."""
        seed_everything(derive_seed(self._context.job.training.seed, self.number, _BEFORE_ALL))
        warmup_steps = self._context.job.communication.warmup_steps
        if self._mode is not StepMode.TAIL:
            self._start = StepStart.capture(self._state)
            if self._state.residuals is not None:
                self._state.residuals.memory.begin()
            with self._context.stamps.waiting():  # for the others, where compression is chosen
                for model in self._state.models.values():
                    model.reducer.begin(self._group, exact=self.number <= warmup_steps)
            self._stamp(Phase.DATA)  # who stands still from here on keeps the others waiting

    def leave(self, error: BaseException | None) -> bool:
        """End the try; True if ``error`` came from a step that is void anyhow."""
        if error is None:
            self.left_whole = True
            self._stamp(Phase.USER)
            return False
        void = isinstance(error, StepAborted) or (
            self._group.failure is not None and isinstance(error, Exception)
        )
        if not void:
            return False
        if not isinstance(error, StepAborted):
            logger.info(
                "step %d is void; its %s is dropped: %s", self.number, type(error).__name__, error
            )
        if self._start is not None and self.outcome is None:
            self._start.restore(self._state)
        return True

    def microbatches(self) -> Iterator[Batch]:
        """Yield this rank's microbatches of the step."""
        if self._mode is StepMode.TAIL:
            return
        feed, consumed = self._context.feed, self._state.consumed_samples
        feed.schedule(consumed, self._group.world_size, self._group.rank)
        if self._spot.is_due:
            yield from self._check_spot(consumed)
        where = self._group.world_size, self._group.rank
        dealt = feed.deal(consumed, *where)
        padding = feed.pad(consumed, *where) if self._is_sharded else ()
        for place, microbatch in enumerate((*dealt, *padding)):
            self._check()
            self._stamp(Phase.DATA)
            self._is_padding = place >= len(dealt)
            read = feed.read_padding if self._is_padding else feed.read
            batch = self._prepare(microbatch, read(microbatch))
            if place == len(dealt) + len(padding) - 1:
                self._arm()
            yield batch
        self._check()

    def _check_spot(self, consumed: int) -> Iterator[Batch]:
        """Yield the microbatch that every rank computes, and look at what comes of it."""
        assert self._start is not None, "the step has been entered"
        self._check()
        self._stamp(Phase.DATA)
        self._spot.is_on = True
        microbatch = self._spot.choose(consumed)
        yield self._prepare(microbatch, self._context.feed.read_padding(microbatch))
        self._spot.finish(self._state, self._start)
        self._scale = None
        for model in self._state.models.values():
            model.reducer.note_loss_scale(1.0)

    def _prepare(self, microbatch: Microbatch, batch: Batch) -> Batch:
        """Make ready for a microbatch's forward and backward."""
        batch = batch.to(self._context.device)
        seed = self._context.job.training.seed
        seed_everything(derive_seed(seed, self.number, microbatch.index))
        self._backward_due = True
        self._stamp(Phase.COMPUTE)
        return batch

    def backward(self, mean_loss: Tensor, weight: float) -> None:
        """Run autograd on one microbatch's weighted loss."""
        self._check()
        if not weight >= 0:
            raise TrainingError(
                f"step {self.number}: backward got weight={weight}, expected a number of targets, "
                "at least 0"
            )
        if not self._backward_due:
            raise TrainingError(
                f"step {self.number}: got a second backward() for one microbatch, expected one; "
                "add the losses up and call step.backward once in each turn of the microbatch loop"
            )
        self._backward_due = False
        if self._is_padding:
            weight = 0.0
        elif not self._spot.is_on:
            self._weight += weight
            self._loss_sum += mean_loss.detach().to(self._loss_sum) * weight
        (mean_loss * (weight * self._scale_for(weight))).backward()
        self._stamp(Phase.COMPUTE)

    def _scale_for(self, weight: float) -> float:
        """Return by what the step's losses are multiplied: the one that weighs most decides."""
        scaler = self._state.loss_scaler
        if scaler is not None and weight > 0:
            fits = scaler.scale_weighted(weight)
            if self._scale is None or fits < self._scale:
                self._scale = fits
                for model in self._state.models.values():
                    model.reducer.note_loss_scale(fits)
        return 1.0 if self._scale is None else self._scale

    def log(self, scalars: Mapping[str, Tensor | float]) -> None:
        """Add values to the step's weighted means; each microbatch weighs the same."""
        if self._is_padding or self._spot.is_on:
            return
        for name, value in scalars.items():
            commit_record.require_loggable(name)
            total, weight = self._scalars.get(name, (torch.zeros((), dtype=torch.float64), 0.0))
            addend = torch.as_tensor(value).detach().to("cpu", torch.float64)
            self._scalars[name] = (total + addend, weight + 1.0)
        if len(self._scalars) > commit_record.MAX_SCALARS:
            raise TrainingError(
                f"step.log: got {len(self._scalars)} names in one step, expected at most "
                f"{commit_record.MAX_SCALARS}; log fewer values"
            )

    def commit(self) -> Committed:
        """Reduce, agree, apply."""
        if self._mode is StepMode.TAIL:
            assert self._state.last_commit is not None, "a tail is of a committed step"
            return self._state.last_commit
        self._check()
        if self.outcome is not None:
            raise TrainingError(
                f"step {self.number}: got a second commit(), expected one in each step"
            )
        self._times.begin_waiting()
        self._stamp(Phase.COMMUNICATE)
        models = self._state.models.values()
        reduced = [model.reducer.finish() for model in models]
        gradients = take_from_rank_0(models, reduced, self._group, self._context.device)
        if gradients is None:
            raise StepAborted
        if self._state.residuals is not None and self._mode is StepMode.LIVE:
            self._state.residuals.offer(self._next_version, self._group)
        decision = self._agree(gradients)
        waited_s = self._times.waiting_s
        digests = StepDigests(self._context, self._state, self._group, self.number)
        verdict = judge_step(decision, self._state.norm_guard, self._context.job)
        committed = self._apply(clip_alike(gradients, decision.norm), decision, verdict)
        tensor_digests = digests.finish()
        self.reached = self.outcome = Outcome(
            committed,
            SYSTEM_CLOCK.unix_s(),
            decision,
            compute_s=self._times.total_s - waited_s,
            wait_s=waited_s,
            exchange_s=self._times.exchange_s,
            wire_bytes=sum(m.reducer.wire_bytes(self._group.world_size) for m in models),
            sums=describe_sums(self._state, self._group, gradients, decision.flags),
            scalars=describe_scaling(self._state) | decision.scalars,
            odd_norm=verdict.odd,
            consumed_samples=self._state.consumed_samples,
            tensor_digests=tensor_digests,
        )
        choices = keep_choices(self._state, self.number)
        if self._group.rank == 0:
            for choice in choices:
                self._context.report(choice)
        self._snapshot(decision.flags)
        self._wait_until_copied(decision.flags)
        self._stamp(Phase.USER)
        if self._mode is StepMode.REHEARSAL:
            self._state.begin_overwrite()
            raise StepAborted
        return committed

    def _wait_until_copied(self, flags: Flag) -> None:
        """Wait until all ranks have copied: only then may they stop, or is a sharded step safe."""
        context, outcome = self._context, self.outcome
        if not (self._is_sharded or flags & Flag.STOP):
            return
        try:
            gather_numbers([1.0], self._group, context.device, context.stamps)
        except StepAborted:
            if not self._is_sharded:
                return  # the step stays, and all stop with the next
            self._state.begin_overwrite()  # it may have to come again: what counts is read back
            self.outcome = None
            raise
        if outcome is not None and flags & Flag.STOP:
            self.reached = self.outcome = replace(outcome, stops=True)
            context.report(AllStop(self.number, self._group.spec.epoch))

    def _agree(self, gradients: list[ReducedGradients]) -> CommitDecision:
        """Exchange records; from here on every rank that gets them all decides alike."""
        digest = 0
        for each in gradients:
            digest = (digest * 31 + each.digest) & (2**64 - 1)
        epoch = self._group.spec.epoch
        record = CommitRecord(
            epoch.incarnation,
            epoch.counter,
            self.number,
            flags=self._flags(),
            digest=digest,
            spot_digest=self._spot.digest,
            weight=self._weight,
            loss_sum=float(self._loss_sum),
            norm=math.hypot(*(each.norm for each in gradients)),
            compute_s=self._times.computed_s,
            wait_s=self._times.waited_s,
            scalars={
                name: Scalar(float(total), weight)
                for name, (total, weight) in self._scalars.items()
            },
        )
        self._stamp(Phase.COMMIT)
        with self._times.exchanging():
            records = commit_record.exchange(record, self._group, self._context.device)
        if records is None:
            raise StepAborted
        decision = commit_record.decide_commit(records)
        difference = describe_difference(decision, gradients, self._group, self.number)
        if difference is not None:
            self._context.report(difference)
            self._group.fail(difference.explain(self._group.world_size))
            raise StepAborted
        return decision

    def _flags(self) -> Flag:
        """What this rank tells the others: what was asked of it, and how its snapshots stand."""
        flags, snapshots = self._context.gate.take_requests(), self._context.snapshots
        flags |= Flag.SLOW_KERNELS if kernels.is_slow() else Flag.NONE
        return (
            flags
            if snapshots is None
            else flags | snapshots.flags(self._group.spec, self._group.rank)
        )

    def _apply(
        self, gradients: list[ReducedGradients], decision: CommitDecision, verdict: StepVerdict
    ) -> Committed:
        """Move everything that a step moves. Until it is done this rank holds no whole state."""
        state, total = self._state, decision.total_weight
        training = self._context.job.training
        size = scale_step(self._context.job, self._group.world_size)
        lr = next(iter(state.models.values())).lr * size.lr_factor
        applied, finite = verdict.is_applied, verdict.is_finite
        state.begin_overwrite()
        self._stamp(Phase.OPTIMIZER)
        if applied:
            seed_everything(derive_seed(training.seed, self.number, _AFTER_ALL))
            update_models(state, gradients, Scales(total, training.clip_norm, size.lr_factor))
        scale_to_blame = state.loss_scaler is not None and state.loss_scaler.may_be_to_blame
        if state.loss_scaler is not None and total:
            state.loss_scaler.update(finite=finite)
        state.norm_guard = verdict.guard
        state.skipped_in_a_row = 0 if finite or scale_to_blame else state.skipped_in_a_row + 1
        state.consumed_samples += size.num_samples
        state.last_commit = Committed(
            self.number, applied, decision.loss, verdict.norm, lr, self._group.world_size
        )
        state.version = self._next_version
        if applied and state.residuals is not None and self._mode is StepMode.LIVE:
            state.residuals.keep(state.version)
        require_finite_steps(self.number, state.skipped_in_a_row, training.max_skipped_steps)
        return state.last_commit

    @property
    def _next_version(self) -> Version:
        return Version(self.number, self._group.spec.epoch)

    def _snapshot(self, flags: Flag) -> None:
        """Copy the new state out, if that is due."""
        snapshots, residuals = self._context.snapshots, self._state.residuals
        if self._mode is StepMode.REHEARSAL or (snapshots is None and residuals is None):
            return
        self._stamp(Phase.SNAPSHOT)
        sums = None if residuals is None else residuals.sums
        # If the group fails, the step stays; its checkpoint is not made.
        is_whole = residuals is None or self._add_up(residuals, snapshots, flags)
        if is_whole and snapshots is not None:
            snapshots.after_commit(self._state, self._group.spec, self._group.rank, flags)
        if residuals is not None:
            residuals.sums = sums

    def _add_up(
        self, residuals: ResidualState, snapshots: SnapshotCadence | None, flags: Flag
    ) -> bool:
        """Where there is a checkpoint, put the residuals' sums into it; False if the group fails.

        Where there is one by the step's number, they are dealt out too, even if the store is busy:
        then a run that resumes there, or recovers, or is replayed, goes on with the same bits.
        """
        is_made = snapshots is not None and snapshots.makes_checkpoint(self.number, flags)
        is_due = has_checkpoint(self._context.job, self.number)
        if not is_made and not is_due:
            return True
        stamps = self._context.stamps
        with stamps.waiting():
            total = residuals.add_up(self._group, stamps.renew)
            if total is None or (is_due and not residuals.deal_out(total, self._group)):
                return False
        if is_made:
            residuals.sums = residuals.memory.named(total)
        return True

    def _check(self) -> None:
        if self._group.failure is not None:
            raise StepAborted

    def _arm(self) -> None:
        for model in self._state.models.values():
            model.reducer.arm()

    def _stamp(self, phase: Phase) -> None:
        epoch = self._group.spec.epoch
        self._context.stamps.stamp(
            phase, step=self.number, epoch=epoch, sequence=self._group.sequence
        )
