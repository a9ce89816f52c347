import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from trainflow.computation.epoch_gate import EpochGate, SessionClosed, Standing
from trainflow.epochs import EpochId, EpochSpec, Flag, MemberReport, RecoveryPlan, Version
from trainflow.errors import CommunicationError, CoordinationError

TIMEOUT_S = 10.0
VERSION = Version(5, EpochId(1, 1))
STANDING = Standing(VERSION, tail_done=True)


class FakeGroup:
    def __init__(self, spec: EpochSpec, rank: int):
        self.spec = spec
        self.rank = rank
        self.failure: str | None = None
        self.abort_error: OSError | None = None

    def abort(self, reason: str) -> None:
        if self.abort_error is not None:
            raise self.abort_error
        self.failure = self.failure or reason


class FakeConnect:
    """Connects at once, unless it is told to wait for an epoch's members or to fail."""

    def __init__(self):
        self.groups: dict[int, FakeGroup] = {}
        self.missing: dict[int, threading.Event] = {}
        self.begun: dict[int, threading.Event] = {n: threading.Event() for n in range(1, 5)}
        self.error: CommunicationError | None = None

    def __call__(self, spec: EpochSpec, rank: int) -> FakeGroup:
        counter = spec.epoch.counter
        self.begun[counter].set()
        if counter in self.missing:
            assert self.missing[counter].wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        self.groups[counter] = FakeGroup(spec, rank)
        return self.groups[counter]


def spec(counter: int) -> EpochSpec:
    return EpochSpec(EpochId(1, counter), ("other", "me"), "", 0)


def plan(counter: int) -> RecoveryPlan:
    return RecoveryPlan(spec(counter), VERSION)


@pytest.fixture
def connect() -> FakeConnect:
    return FakeConnect()


@pytest.fixture
def gate(connect: FakeConnect) -> EpochGate:
    return EpochGate("me", connect)


Call = Callable[..., Future]


@pytest.fixture
def call(gate: EpochGate) -> Iterator[Call]:
    """Run something in a thread of its own; what still waits at the end is let go."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield pool.submit
        gate.close()


def wait_standing(gate: EpochGate) -> None:
    gate.wait_parked()
    with gate._changed:
        assert gate._changed.wait_for(lambda: gate._standing is not None, TIMEOUT_S)


def enter(gate: EpochGate, call: Call, counter: int) -> None:
    """Take the training side into an epoch."""
    parked = call(gate.park, STANDING)
    gate.form(spec(counter))
    gate.begin(plan(counter))
    parked.result(TIMEOUT_S)


def test_a_formed_epoch_is_entered_with_its_group_and_plan(gate, connect, call):
    parked = call(gate.park, STANDING)
    report = call(gate.form, spec(1)).result(TIMEOUT_S)
    assert (report.worker_id, report.version, report.tail_done) == ("me", VERSION, True)
    assert not parked.done(), "formed is not begun"
    gate.begin(plan(1))
    assignment = parked.result(TIMEOUT_S)
    assert assignment.group is connect.groups[1]
    assert assignment.group.rank == 1
    assert assignment.plan == plan(1)
    assert gate.standing is None


def test_forming_waits_until_training_stands_still(gate, connect, call):
    forming = call(gate.form, spec(1))
    assert connect.begun[1].wait(TIMEOUT_S)
    assert not forming.done()
    assert not gate.has_parked
    call(gate.park, STANDING)
    assert forming.result(TIMEOUT_S) == MemberReport(
        "me",
        VERSION,
        tail_done=True,
        freed_s=forming.result().freed_s,
        connected_s=forming.result().connected_s,
        parked_s=forming.result().parked_s,
    )
    assert gate.has_parked


def test_forming_frees_training_from_the_old_epoch(gate, connect, call):
    enter(gate, call, 1)
    forming = call(gate.form, spec(2))
    assert connect.begun[2].wait(TIMEOUT_S)
    assert connect.groups[1].failure == "superseded by epoch 1.2"
    call(gate.park, STANDING)
    forming.result(TIMEOUT_S)
    assert connect.groups[2].failure is None


def test_at_a_boundary_training_leaves_the_old_epoch_by_itself(gate, connect, call):
    enter(gate, call, 1)
    forming = call(gate.form, spec(2), at_boundary=True)
    assert connect.groups[1].failure is None
    assert not connect.begun[2].is_set(), "it connects once training stands still"
    call(gate.park, STANDING)
    forming.result(TIMEOUT_S)
    assert gate.spec == spec(2)


def test_a_newer_epoch_supersedes_one_that_still_connects(gate, connect, call):
    connect.missing[1] = threading.Event()
    call(gate.park, STANDING)
    older = call(gate.form, spec(1))
    assert connect.begun[1].wait(TIMEOUT_S)
    assert call(gate.form, spec(2)).result(TIMEOUT_S).version == VERSION
    connect.missing[1].set()
    with pytest.raises(CoordinationError, match=r"epoch 1\.1 was superseded by 1\.2"):
        older.result(TIMEOUT_S)
    assert connect.groups[1].failure == "superseded by epoch 1.2"
    assert connect.groups[2].failure is None
    assert gate.spec == spec(2)


def test_a_newer_epoch_supersedes_one_that_waits_for_training(gate, connect, call):
    older = call(gate.form, spec(1))
    assert connect.begun[1].wait(TIMEOUT_S)
    newer = call(gate.form, spec(2))
    with pytest.raises(CoordinationError, match="superseded"):
        older.result(TIMEOUT_S)
    parked = call(gate.park, STANDING)
    newer.result(TIMEOUT_S)
    gate.begin(plan(2))
    assert parked.result(TIMEOUT_S).group is connect.groups[2]


def test_a_newer_epoch_supersedes_one_that_waits_for_the_boundary(gate, call):
    enter(gate, call, 1)
    older = call(gate.form, spec(2), at_boundary=True)
    newer = call(gate.form, spec(3))
    with pytest.raises(CoordinationError, match=r"superseded|out of date"):
        older.result(TIMEOUT_S)
    call(gate.park, STANDING)
    newer.result(TIMEOUT_S)


@pytest.mark.parametrize("counter", [1, 2])
def test_an_epoch_that_is_not_newer_is_refused(gate, call, counter):
    call(gate.park, STANDING)
    gate.form(spec(2))
    with pytest.raises(CoordinationError, match="out of date"):
        gate.form(spec(counter))


def test_only_the_epoch_that_was_formed_last_begins(gate, call):
    parked = call(gate.park, STANDING)
    gate.form(spec(1))
    gate.form(spec(2))
    with pytest.raises(CoordinationError, match=r"epoch 1\.1 is out of date; at 1\.2"):
        gate.begin(plan(1))
    assert not parked.done()
    gate.begin(plan(2))
    assert parked.result(TIMEOUT_S).plan == plan(2)


def test_an_epoch_that_could_not_connect_does_not_begin(gate, connect, call):
    parked = call(gate.park, STANDING)
    connect.error = CommunicationError("a member did not come")
    with pytest.raises(CommunicationError, match="did not come"):
        gate.form(spec(1))
    with pytest.raises(CoordinationError, match="out of date"):
        gate.begin(plan(1))
    connect.error = None
    gate.form(spec(2))
    gate.begin(plan(2))
    parked.result(TIMEOUT_S)


def test_each_assignment_is_given_once(gate, call):
    enter(gate, call, 1)
    again = call(gate.park, STANDING)
    wait_standing(gate)
    assert not again.done()


def test_a_request_lasts_until_the_next_epoch(gate, call):
    gate.request(Flag.PAUSE)
    gate.request(Flag.STOP)
    assert gate.take_requests() == Flag.PAUSE | Flag.STOP
    enter(gate, call, 1)
    assert gate.take_requests() is Flag.NONE


def test_a_checkpoint_that_is_asked_for_is_one_checkpoint(gate):
    gate.request(Flag.CHECKPOINT)
    gate.request(Flag.PAUSE)
    assert gate.take_requests() == Flag.CHECKPOINT | Flag.PAUSE
    assert gate.take_requests() is Flag.PAUSE
    gate.request(Flag.CHECKPOINT)
    assert gate.take_requests() == Flag.CHECKPOINT | Flag.PAUSE, "another time"


def test_the_newest_epoch_that_was_asked_for_is_told_until_there_is_a_newer_one(
    gate, connect, call
):
    assert (gate.spec, gate.has_begun, gate.plan) == (None, False, None)
    enter(gate, call, 1)
    assert (gate.spec, gate.has_begun, gate.plan) == (spec(1), True, plan(1))
    connect.missing[2] = threading.Event()
    forming = call(gate.form, spec(2))
    assert connect.begun[2].wait(TIMEOUT_S)
    assert (gate.spec, gate.has_begun, gate.plan) == (spec(2), False, None), "while it connects"
    connect.error = CommunicationError("a member did not come")
    connect.missing[2].set()
    with pytest.raises(CommunicationError):
        forming.result(TIMEOUT_S)
    assert (gate.spec, gate.has_begun) == (spec(2), False), "and after it could not"
    with pytest.raises(CoordinationError, match="out of date"):
        gate.begin(plan(2))


def test_an_epoch_that_could_not_be_left_is_left_by_the_next_forming(gate, connect, call):
    enter(gate, call, 1)
    connect.groups[1].abort_error = OSError("too many open files")
    with pytest.raises(OSError, match="too many"):
        gate.form(spec(2))
    connect.groups[1].abort_error = None
    call(gate.park, STANDING)
    gate.form(spec(3))
    assert connect.groups[1].failure == "superseded by epoch 1.3"


def test_closing_ends_the_wait_for_an_epoch(gate, call):
    parked = call(gate.park, STANDING)
    wait_standing(gate)
    gate.close()
    with pytest.raises(SessionClosed):
        parked.result(TIMEOUT_S)


def test_closing_frees_training_and_lets_it_into_no_further_epoch(gate, connect, call):
    enter(gate, call, 1)
    gate.close()
    assert connect.groups[1].failure == "session closed"
    with pytest.raises(SessionClosed):
        gate.park(STANDING)
    with pytest.raises(CoordinationError, match="out of date"):
        gate.form(spec(2))


@pytest.mark.parametrize("is_forming", [True, False])
def test_who_has_left_for_good_takes_part_in_no_epoch_and_keeps_its_group(
    gate, connect, call, is_forming
):
    enter(gate, call, 1)
    forming = call(gate.form, spec(2)) if is_forming else None
    if is_forming:
        assert connect.begun[2].wait(TIMEOUT_S)
    gate.leave()
    with pytest.raises(CoordinationError):
        gate.form(spec(3)) if forming is None else forming.result(TIMEOUT_S)
    if forming is None:
        assert connect.groups[1].failure is None, "others may yet read what it has sent"


def test_closing_ends_a_forming_under_way(gate, connect, call):
    forming = call(gate.form, spec(1))
    assert connect.begun[1].wait(TIMEOUT_S)
    gate.close()
    with pytest.raises(CoordinationError):
        forming.result(TIMEOUT_S)


def test_whoever_waits_for_readiness_is_let_go_by_closing(gate, call):
    waiting = call(gate.wait_parked)
    gate.close()
    waiting.result(TIMEOUT_S)
    assert not gate.has_parked
