"""A session alone in its world: what it tells the training function, and what it stamps."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor, nn

from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import Samples, make_optimizer, mean_loss
from trainflow.communication import commit_record
from trainflow.communication.commit_record import CommitRecord
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation import joining
from trainflow.computation.data_feed import DataFeed, open_data_feed
from trainflow.computation.epoch_gate import EpochGate, SessionClosed, Standing
from trainflow.computation.profile_order import ProfileOrder
from trainflow.computation.rank_context import RankContext
from trainflow.computation.session import Session
from trainflow.computation.stamps import Stamp, StampWriter, read_stamp
from trainflow.computation.step_history import StepHistory
from trainflow.computation.step_profiler import StepProfiler, TorchRecorder
from trainflow.computation.training_state import TrainingState
from trainflow.computation.transaction import Transaction
from trainflow.coordination.hang_detection import Limits, Progress, judge_progress
from trainflow.data.order import SampleOrder
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    Flag,
    Phase,
    RecoveryPlan,
    StoredState,
    Version,
)
from trainflow.errors import DataError, StateError, TrainingError

TIMEOUT_S = 30.0


class NoArgs(BaseModel):
    pass


def connect(spec: EpochSpec, rank: int) -> Group:
    connector = GlooConnector(
        "127.0.0.1", connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
    )
    return Group(spec, rank, connector(dist.HashStore(), rank, 1), lambda *_: None)


def spec(counter: int) -> EpochSpec:
    return EpochSpec(EpochId(1, counter), ("alone",), "", 0)


@pytest.fixture
def stamp(tmp_path: Path) -> Path:
    return tmp_path / "stamps" / "alone.stamp"


@pytest.fixture
def context(stamp: Path) -> Iterator[RankContext]:
    job = make_job(world=1)
    stamps = StampWriter(stamp)
    feed = DataFeed(job, Samples(40), None)
    gate = EpochGate("alone", connect)
    yield RankContext(
        job=job,
        args=NoArgs(),
        job_id="test",
        device=torch.device("cpu"),
        feed=feed,
        gate=gate,
        stamps=stamps,
        report=lambda _report: None,
        rehearsal=None,
    )
    gate.close()
    feed.close()
    stamps.close()


Begin = Callable[[RecoveryPlan], threading.Thread]


@pytest.fixture
def begin(context: RankContext) -> Iterator[Begin]:
    """Form and begin an epoch as soon as training waits for one."""
    threads: list[threading.Thread] = []

    def coordinate(plan: RecoveryPlan) -> None:
        context.gate.form(plan.spec)
        context.gate.begin(plan)

    def start(plan: RecoveryPlan) -> threading.Thread:
        threads.append(threading.Thread(target=coordinate, args=(plan,)))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(TIMEOUT_S)


def train_alone(
    context: RankContext,
    begin: Begin,
    counter: int = 1,
    after_first: Callable[[], None] = lambda: None,
) -> list[float]:
    """Begin anew, and take all steps; returns their losses."""
    session = Session(context)
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    begin(RecoveryPlan(spec(counter), INITIAL_VERSION))
    losses: list[float] = []
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            losses.append(step.commit().loss)
        if step.number == 1:
            after_first()
        if step.number == MAX_STEPS:
            break
    return losses


def progress_after(stamp: Path, age_s: float) -> Progress:
    """What a Keeper would make of the stamp if nothing but the pulse came for so long."""
    seen = read_stamp(stamp)
    assert seen is not None
    return Progress(seen.pid, seen.step, seen.epoch, seen.phase, age_s, 0.0)


def test_the_training_function_finds_the_jobs_dataset_and_length(context: RankContext):
    session = Session(context)
    assert session.dataset is context.feed.dataset
    assert len(session.dataset) == 40
    assert session.max_steps == MAX_STEPS


def test_complex_parameters_are_refused_unless_they_are_frozen(context: RankContext):
    def build(*, frozen: bool) -> nn.Module:
        module = nn.Linear(2, 2)
        wave = torch.zeros(2, dtype=torch.complex64)
        module.register_parameter("wave", nn.Parameter(wave, requires_grad=not frozen))
        return module

    session = Session(context)
    refusal = r"prepare\('model'\): got .*wave: torch.complex64.*expected real .*view_as_real"
    with pytest.raises(TrainingError, match=refusal):
        session.prepare(lambda: build(frozen=False), make_optimizer)
    session.prepare(lambda: build(frozen=True), make_optimizer)


def make_few(_: NoArgs) -> Samples:
    return Samples(9)


def test_a_dataset_of_less_than_one_batch_is_refused_where_it_is_opened():
    job = make_job()
    data = job.data.model_copy(update={"dataset": f"{__name__}:make_few"})
    with pytest.raises(DataError, match=r"data\.dataset: got 9 samples .*global_batch_size = 10"):
        open_data_feed(job.model_copy(update={"data": data}), NoArgs())


def test_building_a_model_counts_as_progress(context: RankContext, stamp: Path):
    session = Session(context)
    seen = []

    def build() -> nn.Module:
        seen.append(read_stamp(stamp))
        return nn.Linear(8, 1)

    session.prepare(build, make_optimizer)
    later = read_stamp(stamp)
    assert later is not None
    assert later.phase is seen[0].phase is Phase.STARTING
    assert later.progress_at_s > seen[0].progress_at_s


def test_code_after_a_commit_may_take_long_when_it_is_run_again_too(
    context: RankContext, stamp: Path, begin: Begin
):
    session = Session(context)
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    limit_s = 5.0
    verdicts = []
    begin(RecoveryPlan(spec(1), INITIAL_VERSION))
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            step.commit()
            seen = {"a": progress_after(stamp, 2 * limit_s)}
            verdicts.append(judge_progress(seen, Limits(limit_s)))
        if step.replayed:
            break
        base = Version(step.number, EpochId(1, 1))
        begin(RecoveryPlan(spec(2), base, replay_tail=True))
        group = session._group
        assert group is not None
        group.abort("as if a peer were gone")
    assert len(verdicts) == 2, "step 1, and its tail once more"
    assert [verdict.deadlocked for verdict in verdicts] == [False, False]
    assert [verdict.hung for verdict in verdicts] == [{}, {}]


def test_a_state_that_is_read_from_where_it_was_kept_has_a_phase_of_its_own(
    context: RankContext, stamp: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Stamp | None] = []

    def restore(state: TrainingState, stored: StoredState, **_others: Any) -> None:
        seen.append(read_stamp(stamp))
        state.version = stored.version

    monkeypatch.setattr(joining, "restore", restore)
    phases: list[tuple[Phase, int]] = []
    context.stamps.listeners.append(lambda phase, step, _: phases.append((phase, step)))
    session = Session(context)
    session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    stored = StoredState("file:///nowhere", step=5)
    begin(RecoveryPlan(spec(1), stored.version, stored=stored))
    assert next(session.steps()).number == 6
    assert [each and (each.phase, each.epoch) for each in seen] == [
        (Phase.RESTORING, EpochId(1, 1))
    ]
    joining_phases = [Phase.HEALING, Phase.RESTORING, Phase.HEALING]
    assert phases[-4:] == [*((phase, 5) for phase in joining_phases), (Phase.USER, 5)], "its base"


@pytest.mark.parametrize(("position", "first"), [(None, 20), (30, 30), (10, 20)])
def test_samples_before_the_position_of_an_epoch_are_passed_over(
    context: RankContext,
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
    position: int | None,
    first: int,
):
    def restore(state: TrainingState, stored: StoredState, **_others: Any) -> None:
        state.version, state.consumed_samples = stored.version, 20

    monkeypatch.setattr(joining, "restore", restore)
    reports: list[Any] = []
    session = Session(replace(context, report=reports.append))
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    stored = StoredState("file:///nowhere", step=2)
    begin(RecoveryPlan(spec(1), stored.version, stored=stored, position=position))
    used: list[int] = []
    steps = session.steps()
    step = next(steps)
    with step:
        for batch in step.microbatches():
            used += batch.indices
            step.backward(mean_loss(model, batch), weight=batch.num_targets)
        step.commit()
    order = SampleOrder(40, context.job.training.seed, context.job.data.order)
    assert used == order.indices(first, first + BATCH).tolist()
    next(steps)
    assert [each.consumed_samples for each in reports] == [first + BATCH]


class Counting(nn.Linear):
    """Counts its calls in a buffer, as BatchNorm does."""

    def __init__(self) -> None:
        super().__init__(8, 1)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs)


class BreakingSnapshots:
    """Fails with its epoch, after a commit."""

    def __init__(self) -> None:
        self.break_epoch = lambda: None

    def flags(self, *_: object) -> Flag:
        return Flag.NONE

    def before_overwrite(self) -> None:
        pass

    def after_commit(self, *_: object) -> None:
        self.break_epoch()
        raise RuntimeError("as if the node's memory were gone")

    def copy_lag(self, _: int) -> None:
        """Nothing is streamed."""


def test_what_a_commit_moved_stays_moved_when_its_snapshot_fails_with_the_epoch(
    context: RankContext, begin: Begin
):
    snapshots: Any = BreakingSnapshots()
    session = Session(replace(context, snapshots=snapshots))
    model = session.prepare(Counting, make_optimizer)
    begin(RecoveryPlan(spec(1), INITIAL_VERSION))
    num_microbatches = 0
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                num_microbatches += 1
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            group = session._group
            assert group is not None
            base = Version(step.number, EpochId(1, 1))

            def go_on(group: Group = group, base: Version = base) -> None:
                group.abort("as if a peer were gone")
                begin(RecoveryPlan(spec(2), base, replay_tail=True))

            snapshots.break_epoch = go_on
            step.commit()
        if step.replayed:
            break
    assert model.calls == num_microbatches > 0


def look_and_close(
    context: RankContext, asked: EpochSpec
) -> tuple[threading.Thread, list[Standing | None]]:
    """Return who is to ask for an epoch and end the session, and gets what the rank holds then."""
    held: list[Standing | None] = []

    def act() -> None:
        context.gate.form(asked)
        held.append(context.gate.standing)
        context.gate.close()

    return threading.Thread(target=act), held


def train_until_the_epoch_ends(
    context: RankContext, begin: Begin, *, after: int
) -> tuple[list[Any], Standing]:
    """Train to a step; returns what was told, and what the rank holds as the next epoch comes."""
    told: list[Any] = []
    session = Session(replace(context, report=told.append))
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)

    coordinator, held = look_and_close(context, spec(2))

    def train() -> None:
        for step in session.steps():
            with step:
                for batch in step.microbatches():
                    step.backward(mean_loss(model, batch), weight=batch.num_targets)
                step.commit()
            if step.number == after and session._group is not None:
                session._group.abort("as if a peer were gone")
                coordinator.start()

    begin(RecoveryPlan(spec(1), INITIAL_VERSION))
    with pytest.raises(SessionClosed):
        train()
    coordinator.join(TIMEOUT_S)
    assert held[0] is not None
    return told, held[0]


def test_what_is_kept_of_steps_is_what_was_told(context: RankContext, begin: Begin):
    told, standing = train_until_the_epoch_ends(context, begin, after=2)
    assert [report.step for report in told] == [1, 2]
    assert standing.steps == tuple(replace(report, joined=None) for report in told)
    assert standing.version == Version(2, EpochId(1, 1))
    assert standing.steps_up_to(standing.version, 1) == (told[1],)


def test_a_commit_that_may_have_to_come_again_is_kept_and_not_told(
    context: RankContext, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    def fail_with_the_epoch(transaction: Transaction, *_: object) -> None:
        transaction._is_sharded = True  # then it waits for the others' copies
        transaction._group.abort("as if a peer were gone")

    monkeypatch.setattr(Transaction, "_snapshot", fail_with_the_epoch)
    told, standing = train_until_the_epoch_ends(context, begin, after=1)
    assert told == []
    assert standing.version is None
    assert not standing.tail_done, "if others have it whole, its tail is still to come"
    assert [report.version for report in standing.steps] == [Version(1, EpochId(1, 1))]


def test_a_rehearsed_spare_has_no_tail_to_be_done(context: RankContext):
    session = Session(replace(context, rehearsal=rehearsal_group(1, 1)))
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)

    coordinator, held = look_and_close(context, spec(1))

    def rehearse() -> None:
        for step in session.steps():
            with step:
                for batch in step.microbatches():
                    step.backward(mean_loss(model, batch), weight=batch.num_targets)
                step.commit()
            coordinator.start()

    with pytest.raises(SessionClosed):
        rehearse()
    coordinator.join(TIMEOUT_S)
    assert held[0] is not None
    assert (held[0].version, held[0].tail_done) == (None, True)


class SettlingSnapshots:
    """Copies nothing; tells when it was to be whole."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def flags(self, *_: object) -> Flag:
        return Flag.NONE

    def before_overwrite(self) -> None:
        """Nothing is being copied."""

    def after_commit(self, *_: object) -> None:
        self._told.append("commit")

    def makes_checkpoint(self, *_: object) -> bool:
        return False

    def copy_lag(self, _: int) -> None:
        """Nothing is streamed."""

    def settle(self) -> None:
        self._told.append("settled")


def test_at_a_pause_a_rank_parks_with_its_copy_whole(
    context: RankContext, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    told: list[str] = []
    snapshots: Any = SettlingSnapshots(told)
    park = context.gate.park

    def note_and_park(standing: Standing) -> Any:
        told.append("parked")
        return park(standing)

    monkeypatch.setattr(context.gate, "park", note_and_park)
    session = Session(replace(context, snapshots=snapshots))
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    begin(RecoveryPlan(spec(1), INITIAL_VERSION))
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            if step.number == 1:
                context.gate.request(Flag.PAUSE)
            step.commit()
        if step.number == 2:
            break
        begin(RecoveryPlan(spec(2), Version(1, EpochId(1, 1))))
    assert told == ["parked", "commit", "settled", "parked", "commit"]


def test_an_epoch_makes_steps_void_that_came_after_its_base(
    context: RankContext, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    bases: list[Version] = []
    monkeypatch.setattr(StepHistory, "go_on_from", lambda _, base: bases.append(base))
    train_until_the_epoch_ends(context, begin, after=1)
    assert bases == [INITIAL_VERSION]


def test_the_wait_for_the_others_at_the_end_is_one(
    context: RankContext, stamp: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    phases: list[Phase] = []
    exchange = commit_record.exchange

    def look(record: CommitRecord, *rest: Any) -> list[CommitRecord] | None:
        if record.flags & Flag.FINISHED:
            phases.append(progress_after(stamp, 0.0).phase)
        return exchange(record, *rest)

    monkeypatch.setattr(commit_record, "exchange", look)
    session = Session(context)
    model = session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    begin(RecoveryPlan(spec(1), INITIAL_VERSION))
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            step.commit()
    assert phases == [Phase.COMMUNICATE]


def test_a_rank_that_exchanges_records_is_committing(
    context: RankContext, stamp: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    phases: list[Phase] = []
    exchange = commit_record.exchange

    def look(record: CommitRecord, *rest: Any) -> list[CommitRecord] | None:
        phases.append(progress_after(stamp, 0.0).phase)
        return exchange(record, *rest)

    monkeypatch.setattr(commit_record, "exchange", look)
    told, _ = train_until_the_epoch_ends(context, begin, after=1)
    assert phases == [Phase.HEALING, Phase.COMMIT], "as it joins, and of the step"
    assert told[0].phases_s[Phase.COMMIT] >= told[0].exchange_s > 0


def test_whose_sums_a_rank_waits_for_is_shown(
    context: RankContext, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    told: list[str] = []
    monkeypatch.setattr(context.stamps, "note_awaited", told.append)
    losses = train_alone(context, begin)
    assert told.count("the sum of /gradients/model/bias and 1 more") == len(losses)
    assert not told[-1], "afterwards for nothing"


def test_steps_are_recorded_while_a_session_takes_them_and_come_to_the_same(
    context: RankContext, begin: Begin, tmp_path: Path
):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").touch()
    told: list[Any] = []
    profiler = StepProfiler(context.stamps, told.append, partial(TorchRecorder, context.device))
    context.stamps.listeners.append(profiler.on_stamp)

    def ask() -> None:
        assert profiler.ask(ProfileOrder(1, 0, 3, 2, str(folder))) == ""

    losses = train_alone(context, begin, after_first=ask)
    profiler.finish()
    (trace,) = told
    assert (trace.first_step, trace.last_step, trace.cut_short) == (3, 4, "")
    events = json.loads(gzip.decompress((folder / trace.file).read_bytes()))["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert [each for each in names if each.startswith("step ")] == ["step 3", "step 4"]
    assert names.count("aten::mse_loss") == 2 * 4, "one of each microbatch"
    assert {"data", "compute", "communicate", "commit", "optimizer", "user"} <= set(names)
    context.stamps.listeners.clear()
    assert losses == train_alone(context, begin, counter=2)


def test_a_session_that_is_closed_ends_the_loop(context: RankContext):
    session = Session(context)
    session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    context.gate.close()
    with pytest.raises(SessionClosed):
        next(iter(session.steps()))


class Unfit:
    """A state of the user's that can't be written as data."""

    def state_dict(self) -> dict[str, Any]:
        return {"names": {"a", "b"}}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        raise AssertionError("nothing is to be loaded")


def test_a_state_that_can_t_be_kept_is_refused_before_a_step_is_computed(context: RankContext):
    session = Session(context)
    session.prepare(lambda: nn.Linear(8, 1), make_optimizer)
    session.register("words", Unfit())
    context.gate.close()  # what would come to a step ends here, in another way
    with pytest.raises(StateError, match=r"state at /registered/words/names: got set; expected"):
        next(iter(session.steps()))
