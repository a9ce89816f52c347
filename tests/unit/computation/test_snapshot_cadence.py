"""After which steps a rank copies its state out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

from tests.distributed.jobs import MAX_STEPS, make_job
from tests.distributed.training import make_optimizer, mean_loss
from tests.unit.computation import test_session as alone
from trainflow.checkpointing.sharing import Share
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.epoch_gate import SessionClosed
from trainflow.computation.rank_context import RankContext
from trainflow.computation.session import Session
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import TrainingState
from trainflow.config.checkpoint import CheckpointConfig
from trainflow.config.job import SnapshotConfig
from trainflow.epochs import INITIAL_VERSION, EpochId, Flag, RecoveryPlan, Version
from trainflow.errors import CoordinationError

stamp, context, begin = alone.stamp, alone.context, alone.begin


class Album:
    """Takes the place of shared memory."""

    def __init__(self) -> None:
        self.is_busy = False
        self.trouble = ""
        self.num_discards = 0
        self.left_out: list[Any] = []
        self.steps: list[int] = []
        self.shares: set[Share | None] = set()
        self.patience_s: list[float] = []
        self.weights: list[torch.Tensor] = []

    def before_overwrite(self) -> None:
        """Nothing is on its way from a device."""

    def discard(self) -> None:
        self.num_discards += 1

    def write(
        self,
        tree: dict[str, Any],
        version: Version,
        share: Share | None,
        *,
        patience_s: float,
        **_: Any,
    ) -> bool:
        if self.trouble:
            return False
        self.steps.append(version.step)
        self.shares.add(share)
        self.patience_s.append(patience_s)
        self.weights.append(tree["models"]["model"]["weight"].clone())
        return True


Train = Callable[..., Album]


@pytest.fixture
def train(context: RankContext, begin: alone.Begin) -> Train:
    """Train alone with some checkpoint settings; ``stop_at`` asks for a stop in that step."""

    def run(
        *,
        ranks: tuple[int, ...] = (0,),
        stop_at: int | None = None,
        in_memory: int | None = None,
        album: Album | None = None,
        **settings: Any,
    ) -> Album:
        album = album or Album()
        checkpoint = CheckpointConfig(**{"url": "memory://x"} | settings)
        snapshot = SnapshotConfig(every_steps=in_memory)
        job = context.job.model_copy(update={"checkpoint": checkpoint, "snapshot": snapshot})
        any_album: Any = album
        cadence = SnapshotCadence(job, any_album, album.left_out.append, SYSTEM_CLOCK)
        session = Session(replace(context, job=job, snapshots=cadence))
        model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
        begin(RecoveryPlan(replace(alone.spec(1), snapshot_ranks=ranks), INITIAL_VERSION))
        try:
            for step in session.steps():
                with step:
                    for batch in step.microbatches():
                        step.backward(mean_loss(model, batch), weight=batch.num_targets)
                    if step.number == stop_at:
                        context.gate.request(Flag.STOP | Flag.PAUSE)
                    step.commit()
                    if album.steps and album.steps[-1] == step.number:
                        assert torch.equal(album.weights[-1], model.weight), "not the new state"
        except SessionClosed:
            assert stop_at is not None
            with pytest.raises(CoordinationError, match="out of date"):
                context.gate.form(alone.spec(2))
        return album

    return run


def test_every_nth_and_the_last(train: Train):
    album = train(every_steps=3)
    assert album.steps == [3, 6, MAX_STEPS]
    assert album.shares == {Share(0, 1)}
    assert [patience_s > 0 for patience_s in album.patience_s] == [False, False, True]


def test_without_a_cadence_only_the_last(train: Train):
    assert train().steps == [MAX_STEPS]


def test_by_the_clock_when_it_is_due(train: Train):
    assert train(every_s=1e-9).steps == list(range(1, MAX_STEPS + 1))


def test_by_the_clock_not_before_it_is_due(train: Train):
    assert train(every_s=1e9).steps == [MAX_STEPS]


def test_the_step_at_which_the_run_is_stopped(train: Train):
    assert train(every_steps=3, stop_at=5).steps == [3, 5]


def test_a_rank_that_others_copy_for_copies_nothing(train: Train):
    album = train(ranks=(), every_steps=1)
    assert album.steps == []
    assert album.num_discards == 1, "and gives back what it had copied before, once"


def test_what_is_not_for_storage_stays_in_memory(train: Train):
    album = train(in_memory=2, url=None)
    assert album.steps == [2, 4, 6, MAX_STEPS]
    assert album.shares == {None}


def test_while_the_store_is_busy_what_is_due_is_left_out_and_told(train: Train):
    album = Album()
    album.is_busy = True
    train(every_steps=3, album=album)
    assert album.steps == [MAX_STEPS], "the last one waits"
    assert [(each.version.step, each.for_storage) for each in album.left_out] == [
        (3, True),
        (6, True),
    ]


def test_while_the_store_is_busy_memory_still_gets_every_state(train: Train):
    album = Album()
    album.is_busy = True
    train(every_steps=3, in_memory=1, album=album)
    assert album.steps == list(range(1, MAX_STEPS + 1))


def test_want_of_memory_is_told_once_in_a_row(train: Train):
    album = Album()
    album.trouble = "no room"
    train(in_memory=1, url=None, album=album)
    assert [each.version.step for each in album.left_out] == [1]
    assert album.left_out[0].reason == "no room"


@pytest.mark.parametrize(("mode", "waits"), [("ddp", [False] * 2), ("fsdp", [False, True])])
def test_before_others_read_their_parts_in_memory_a_copy_waits_for_room(
    mode: str, waits: list[bool]
):
    writer = create_autospec(SnapshotWriter, instance=True)
    job = make_job(world=1, parallel={"mode": mode})
    cadence = SnapshotCadence(job, writer, Album().left_out.append, SYSTEM_CLOCK)
    spec = replace(alone.spec(1), snapshot_ranks=(0,))
    for step, flags in ((1, Flag.NONE), (2, Flag.PAUSE)):
        state = TrainingState(version=Version(step, EpochId(1, 1)))
        cadence.after_commit(state, spec, 0, flags)
    waited = [call.kwargs["patience_s"] > 0 for call in writer.write.call_args_list]
    assert waited == waits


@pytest.mark.parametrize(("mode", "lag"), [("ddp", None), ("fsdp", 2)])
def test_copies_are_behind_by_the_steps_since_the_last_that_arrived(mode: str, lag: int | None):
    any_album: Any = Album()
    job = make_job(world=2, parallel={"mode": mode})
    cadence = SnapshotCadence(job, any_album, any_album.left_out.append, SYSTEM_CLOCK)
    assert cadence.copy_lag(5) is None, "nothing has arrived"
    if cadence._streaming is not None:
        cadence._streaming.recoverable = Version(3, EpochId(1, 1))
    assert cadence.copy_lag(5) == lag
