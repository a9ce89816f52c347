"""Bring a rank to the state that an epoch begins from.

Process: every rank.  Thread: training, parked between steps.  Blocks: until the others have come.
Fails: returns False when the group breaks; another epoch comes.
"""

from trainflow.communication import commit_record
from trainflow.communication.commit_record import CommitRecord
from trainflow.communication.group import Group
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.healing import heal
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import ResidualsLost
from trainflow.computation.residual_memory import ResidualMemory
from trainflow.computation.residual_settling import Surroundings, settle
from trainflow.computation.residual_state import ResidualState
from trainflow.computation.restoring import restore, unusable
from trainflow.computation.snapshot_cadence import has_checkpoint
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import Phase, RecoveryPlan
from trainflow.errors import (
    CheckpointError,
    CheckpointMisfitError,
    CheckpointVersionError,
    GroupMismatchError,
    StoreError,
)


def open_residuals(context: RankContext, state: TrainingState) -> ResidualState | None:
    """Make the memory for error feedback, if the job wants it.

    Raises:
        StateError: there is no room for it.
    """
    if not context.job.communication.feeds_back:
        return None
    reducers = {
        name: model.reducer
        for name, model in state.models.items()
        if isinstance(model.reducer, GradientReducer)
    }
    memory = ResidualMemory(reducers, context.device, context.shared_memory, context.worker_id)
    return ResidualState(memory)


def join(context: RankContext, state: TrainingState, group: Group, plan: RecoveryPlan) -> bool:
    """Restore if nobody has the base, agree on what is trained, heal who lacks it.

    Raises:
        GroupMismatchError: the ranks don't train the same.
    """
    is_sharded = context.job.parallel.is_sharded
    reads = state.version != plan.base if is_sharded else group.rank == 0
    if plan.stored is not None and reads and not _restore(context, state, plan, group):
        return False
    if not _same_layout(context, state, group):
        return False
    if not is_sharded and not heal(
        state, plan, group, context.device, after_each=context.stamps.renew
    ):
        return False
    if plan.position is not None:
        state.consumed_samples = max(state.consumed_samples, plan.position)
    if is_sharded and context.snapshots is not None:
        context.snapshots.begin_from(state, group.spec.shard_of(group.rank))
    return state.residuals is None or _settle(context, state, group, plan)


def _restore(context: RankContext, state: TrainingState, plan: RecoveryPlan, group: Group) -> bool:
    """Read the state from where it was kept; False, and the group fails, if it is bad."""
    stored = plan.stored
    assert stored is not None, "there is something to restore"
    try:
        with context.stamps.during(Phase.RESTORING):
            restore(
                state,
                stored,
                shard=group.spec.shard_of(group.rank),
                after_each=context.stamps.renew,
                own_memory=context.own_memory,
            )
    except (StoreError, CheckpointMisfitError, CheckpointVersionError):
        raise  # it may be quite in order: nobody is to do without it unasked
    except CheckpointError as error:
        context.report(unusable(stored, error))
        group.fail(f"{stored} can't be used")
        return False
    return True


def _same_layout(context: RankContext, state: TrainingState, group: Group) -> bool:
    """Compare bucket layouts with the other ranks; False if the group failed meanwhile."""
    layouts = [model.reducer.fingerprint for model in state.models.values()]
    mine = CommitRecord(0, 0, 0, digest=hash(tuple(layouts)) & (2**64 - 1))
    records = commit_record.exchange(mine, group, context.device)
    if records is None:
        return False
    differing = [rank for rank, record in enumerate(records) if record.digest != records[0].digest]
    if differing:
        raise GroupMismatchError(
            f"epoch {group.spec.epoch}: got other parameters, or another compression of their "
            f"gradients, on ranks {differing} than on rank 0, expected the same names, shapes "
            "and types: the training function must build the same model on every rank"
        )
    return True


def _settle(context: RankContext, state: TrainingState, group: Group, plan: RecoveryPlan) -> bool:
    """Give this rank its part of what compression has left out so far."""
    assert state.residuals is not None, "only called under error feedback"
    surroundings = Surroundings(
        group,
        plan.keepers,
        context.device,
        context.stamps.renew,
        deals_out=state.version is not None and has_checkpoint(context.job, state.version.step),
    )
    lost = settle(state.residuals, surroundings)
    if lost and group.rank == 0:
        context.report(ResidualsLost(plan.base.step, lost))
    return lost is not None
