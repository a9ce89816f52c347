"""What a training function is given: the model's way in, and the steps.

Process: every rank.  Thread: training.  Ranks: every rank runs the same training function; a spare
waits in ``steps`` until it is given a rank.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication import commit_record
from trainflow.communication.commit_record import CommitRecord
from trainflow.communication.group import Group
from trainflow.computation.aborted import StepAborted, StepMode
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.epoch_gate import SessionClosed, Standing
from trainflow.computation.evaluation import evaluate, reduce_over_ranks
from trainflow.computation.fresh_state import FreshState, begin_state
from trainflow.computation.joining import join, open_residuals
from trainflow.computation.outcome import Outcome, describe_step
from trainflow.computation.preparing import make_replicated, make_sharded
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import EvaluationReport, Joined, TensorDigests
from trainflow.computation.seeding import seed_everything
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.state_tree import require_keepable
from trainflow.computation.step import Step
from trainflow.computation.step_history import StepHistory
from trainflow.computation.training_state import Registered, Stateful
from trainflow.computation.transaction import Transaction
from trainflow.computation.whole_weights import gather_weights
from trainflow.computation.witness import StateDigest, digest_state
from trainflow.data.batch import Batch
from trainflow.data.loader import MapDataset
from trainflow.epochs import (
    INITIAL_EPOCH,
    INITIAL_VERSION,
    WHOLE,
    EpochId,
    Flag,
    Phase,
    RecoveryPlan,
    ShardId,
    Version,
)
from trainflow.errors import TrainingError


class Session:
    """One rank's part in a run.

    Attributes:
        args: the job's ``args``, as the training function's own pydantic model.
        device: where to put what isn't a module (modules and batches are put there).
        job_id: names the run.
    """

    def __init__(self, context: RankContext):
        self.args = context.args
        self.device: torch.device = context.device
        self.job_id: str = context.job_id
        self._context = context
        self._state = begin_state(context.job)
        if context.snapshots is not None:
            self._state.before_overwrite = context.snapshots.before_overwrite
        self._sharded: dict[str, ShardedModel] = {}
        self._group: Group | None = None
        self._sealed = False
        self._tail_done = True
        self._finished = False
        self._pausing = False
        self._tried = self._retry = 0
        self._joined: Joined | None = None
        self._history = StepHistory()
        seed_everything(context.job.training.seed)
        self._stamp(Phase.STARTING)

    @property
    def rank(self) -> int | None:
        """This worker's rank at the moment; None while it is a spare."""
        return None if self._group is None else self._group.rank

    @property
    def world_size(self) -> int:
        """Number of ranks at the moment; 0 while this worker is a spare."""
        return 0 if self._group is None else self._group.world_size

    @property
    def epoch(self) -> EpochId | None:
        """The generation of membership that this rank is in; None while it is a spare."""
        return None if self._group is None else self._group.spec.epoch

    @property
    def dataset(self) -> MapDataset:
        """The job's training samples, as ``data.url`` (a `TokenCorpus`) or ``data.dataset`` opened.

        Ask it what a model must know: its length, a vocabulary. Samples come from
        ``step.microbatches()``; another thread reads them ahead, so don't index it beside that.
        """
        return self._context.feed.dataset

    @property
    def max_steps(self) -> int:
        """How many steps the run has: ``training.max_steps``, for a schedule that ends with it."""
        return self._context.job.training.max_steps

    @property
    def finished(self) -> bool:
        """Whether the last step is done on every rank."""
        return self._finished

    def prepare(
        self,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        *,
        name: str = "model",
    ) -> nn.Module:
        """Build a model with its optimizer and scheduler, and make them part of the transaction.

        Args:
            model: builds the module; called with seeded generators. All ranks start from rank 0's.
            optimizer: takes the trainable parameters.
            scheduler: takes the optimizer; stepped once a commit.
            name: tells several models apart; each is reduced, clipped and stepped by itself.

        Returns:
            The module, on the session's device; hold on to it for the whole run.

        Raises:
            TrainingError: no trainable parameters, complex ones, a name used twice or with a
                slash, or steps have begun.
            ConfigError: a pattern of ``communication.per_parameter`` matches no parameter.
        """
        self._require_unsealed("prepare", name, self._state.models)
        if "/" in name:
            raise TrainingError(
                f"prepare({name!r}): got a name with a slash, expected one without; change it"
            )
        self._stamp(Phase.STARTING)
        blueprint = Blueprint(model, optimizer, scheduler)
        job = self._context.job
        if job.parallel.is_sharded:
            sharded = make_sharded(name, blueprint, self._context)
            self._sharded[name] = sharded
            self._state.models[name] = sharded.prepared
            return sharded.handle
        self._state.models[name] = make_replicated(name, blueprint, self._context)
        self._stamp(Phase.STARTING)
        return self._state.models[name].module

    def register(
        self, name: str, state: Stateful, *, on_commit: Callable[[], None] | None = None
    ) -> None:
        """Make ``state`` part of the transaction: restored on abort, given to ranks that join.

        Args:
            name: tells several states apart.
            state: anything with ``state_dict`` and ``load_state_dict``; the same on every rank.
            on_commit: called on every rank after each applied step (an EMA's update, say).

        Raises:
            TrainingError: a name used twice, or steps have begun.
        """
        self._require_unsealed("register", name, self._state.registered)
        self._state.registered[name] = Registered(state, on_commit)

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in ``training.precision``."""
        precision = self._context.job.training.precision
        dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype, enabled=precision != "fp32")

    def reduce(
        self, value: float | Tensor, op: Literal["mean", "sum", "min", "max"] = "mean"
    ) -> float:
        """Combine one number over all ranks, the same on each; call it on every rank or on none.

        Raises:
            StepAborted: a rank was lost; the step comes again.
            TrainingError: called outside a step.
        """
        group = self._require_group("reduce")
        return reduce_over_ranks(float(value), op, group, self.device, self._context.stamps)

    def evaluate(self, name: str, fn: Callable[[Batch], tuple[Tensor, float]]) -> float:
        """Take the weighted mean of ``fn`` over the validation data; call it after ``commit``.

        Modules are in eval mode, without gradients; random numbers and the data position of
        training are left as they were. After a failure it is done again, without the step being
        applied again.

        Args:
            name: what the value is called in the run's metrics.
            fn: takes a batch; returns its mean and the weight (targets, samples) it was taken over.

        Returns:
            The mean over all ranks' batches, the same on each.

        Raises:
            StepAborted: a rank was lost; the tail of the step comes again.
        """
        group = self._require_group("evaluate")
        value = evaluate(self._context, self._state, group, fn)
        if group.rank == 0 and self._state.version is not None:
            self._context.report(EvaluationReport(self._state.version.step, name, value))
        return value

    def full_state_dict(self, name: str = "model") -> dict[str, Any]:
        """Gather a model's ``state_dict`` whole, however it is sharded; on every rank or on none.

        Returns:
            On rank 0 copies in the host's memory; on the others nothing.

        Raises:
            StepAborted: a rank was lost; the step, or its tail, comes again.
            TrainingError: called outside a step.
        """
        group = self._require_group("full_state_dict")
        return gather_weights(self._state.models[name].module, group, self._context.stamps)

    def steps(self) -> Iterator[Step]:
        """Yield the steps of the run; each is to be computed and committed in a ``with``.

        A spare waits here. Ends on every rank together, when the last step is done everywhere.

        Raises:
            TrainingError: no model was prepared.
            StateError: the state holds something that can't be kept, says what and where; or there
                is no room for what error feedback needs.
        """
        if not self._state.models:
            raise TrainingError("steps: got no model, expected session.prepare(...) before it")
        self._sealed = True
        self._state.residuals = open_residuals(self._context, self._state)
        require_keepable(self._state.tree())
        self._context.on_built(self._state.models)
        if self._context.rehearsal is not None:
            self._group, fresh = self._context.rehearsal, FreshState.capture(self._state)
            yield from self._present(StepMode.REHEARSAL, self._group)
            self._group = None
            fresh.restore(self._state)
        else:
            self._state.version = INITIAL_VERSION
        while not self._finished:
            if self._group is None or self._group.failure is not None or self._pausing:
                yield from self._join_epoch()
            elif self._state.version == self._last_version():
                self._leave_together(self._group)
            else:
                yield from self._present(StepMode.LIVE, self._group)

    def describe_end(self) -> tuple[int | None, ShardId, StateDigest]:
        """Return this rank's number, its part of the state and the digest of that, for a record."""
        return self.rank, self._shard, digest_state(self._state)

    def linger(self) -> None:
        """After the training function has returned: hold the final state for ranks that join late.

        Returns when the session is closed.
        """
        try:
            while True:
                for _ in self._join_epoch():
                    pass
        except SessionClosed:
            return

    def _present(self, mode: StepMode, group: Group) -> Iterator[Step]:
        """Yield one step and see to what became of it."""
        transaction = Transaction(self._context, self._state, group, mode)
        self._stamp(Phase.USER)  # above all after healing, which counts as waiting
        yield Step(transaction.number, self._count_try(transaction.number, mode), mode, transaction)
        if mode is StepMode.TAIL or (mode is StepMode.LIVE and transaction.reached is not None):
            self._tail_done = transaction.left_whole
        if mode is StepMode.LIVE and transaction.reached is not None:
            self._after_commit(transaction.reached, group, is_safe=transaction.outcome is not None)

    def _count_try(self, number: int, mode: StepMode) -> int:
        """Return how often this step was abandoned before; a tail or a rehearsal is no try."""
        if mode is not StepMode.LIVE:
            return 0
        self._retry = self._retry + 1 if number == self._tried else 0
        self._tried = number
        return self._retry

    def _after_commit(self, outcome: Outcome, group: Group, *, is_safe: bool) -> None:
        snapshots = self._context.snapshots
        lag = None if snapshots is None else snapshots.copy_lag(outcome.committed.number)
        report = describe_step(outcome, group, lag, self._context.stamps.take_phases())
        self._history.note(report)
        if not is_safe:  # it may have to come again; if it hasn't, it is asked for
            return
        self._pausing = report.pausing
        joined, self._joined = self._joined, None
        if group.rank == 0 or joined is not None or outcome.stops:  # whoever lives to
            self._context.report(replace(report, joined=joined))
        if outcome.tensor_digests:
            number, epoch = outcome.committed.number, group.spec.epoch
            self._context.report(TensorDigests(number, epoch, outcome.tensor_digests))
        if outcome.stops:
            self._context.gate.leave()
            raise SessionClosed

    def _join_epoch(self) -> Iterator[Step]:
        """Wait for an epoch and join it; yields the last step's tail if that must run again."""
        if self._context.snapshots is not None and (self._pausing or self._sharded):
            self._context.snapshots.settle()
        self._stamp(Phase.PARKED)
        standing = Standing(
            self._state.version,
            tail_done=self._tail_done,
            finished=self._finished,
            shard=self._shard,
            steps=self._history.reports,
        )
        assignment = self._context.gate.park(standing)
        group, plan = assignment.group, assignment.plan
        self._group, self._pausing = group, False
        self._history.go_on_from(plan.base)
        self._tail_done = not plan.replay_tail
        self._stamp(Phase.HEALING, plan.base.step)
        self._lay_out(plan)
        if not join(self._context, self._state, group, plan):
            return
        self._joined = Joined(
            assignment.begun_at_s, SYSTEM_CLOCK.unix_s(), healed=group.rank in plan.sources
        )
        self._finished = plan.finished
        if plan.replay_tail and not self._finished and self._state.last_commit is not None:
            yield from self._present(StepMode.TAIL, group)

    @property
    def _shard(self) -> ShardId:
        """Which part of the state this rank holds."""
        if not self._sharded:
            return WHOLE
        layout = next(iter(self._sharded.values())).layout
        return ShardId(layout.index, layout.count)

    def _lay_out(self, plan: RecoveryPlan) -> None:
        """Make sharded models anew where this rank's shards are others than before."""
        assert self._group is not None, "only called with one"
        shard = self._group.spec.shard_of(self._group.rank)
        layout = Layout(shard.index, shard.count)
        is_new = plan.base == INITIAL_VERSION and plan.stored is None
        for name, sharded in self._sharded.items():
            if is_new or sharded.layout != layout:
                self._state.begin_overwrite()
                self._state.models[name] = sharded.lay_out(layout, with_values=is_new)
            sharded.connect(self._group)
        if self._sharded and is_new:
            self._state.version = plan.base

    def _leave_together(self, group: Group) -> None:
        """End the run once every rank has finished the last step's tail."""
        assert self._state.version is not None, "a finished rank holds the final state"
        record = CommitRecord(0, 0, self._state.version.step, flags=Flag.FINISHED)
        with self._context.stamps.waiting():
            self._finished = commit_record.exchange(record, group, self.device) is not None

    def _last_version(self) -> Version | None:
        version = self._state.version
        done = version is not None and version.step >= self.max_steps
        return version if done else None

    def _require_group(self, call: str) -> Group:
        if self._group is None or self._finished:
            raise TrainingError(
                f"{call}: got a call outside the steps, expected it inside `with step:`"
            )
        if self._group.failure is not None:
            raise StepAborted
        return self._group

    def _require_unsealed(self, call: str, name: str, taken: object) -> None:
        if self._sealed:
            raise TrainingError(
                f"{call}({name!r}): got a call after steps() began, expected it before"
            )
        if isinstance(taken, dict) and name in taken:
            raise TrainingError(f"{call}({name!r}): got the name twice, expected another `name=`")

    def _stamp(self, phase: Phase, step: int | None = None) -> None:
        version = self._state.version
        held = 0 if version is None else version.step
        self._context.stamps.stamp(
            phase,
            step=held if step is None else step,
            epoch=INITIAL_EPOCH if self._group is None else self._group.spec.epoch,
            sequence=0 if self._group is None else self._group.sequence,
        )
