"""Random lives of a run: joins, deaths, broken groups and half-committed steps, in any order.

The machine plays the workers; `decide_move` and `plan_recovery` decide. A worker's state is the
list of the epochs that committed its steps, so that a step lost, doubled or taken from another
history shows as a difference.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainflow.coordination.membership import (
    Candidate,
    CarryOn,
    FormEpoch,
    PauseToGrow,
    Situation,
    WaitForWorkers,
    decide_move,
)
from trainflow.coordination.recovery_plan import NoLiveStateError, plan_recovery
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, MemberReport, Version

MINIMUM, TARGET = 2, 4
WORKERS = st.integers(0, 50)
SUBSETS = st.frozensets(st.integers(0, TARGET - 1))


@dataclass
class Worker:
    worker_id: str
    node_id: str
    history: list[EpochId] | None
    tail_done: bool = True

    @property
    def version(self) -> Version | None:
        if self.history is None:
            return None
        return Version(len(self.history), self.history[-1]) if self.history else INITIAL_VERSION


@dataclass
class Run:
    workers: dict[str, Worker] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    broken: bool = False
    member_lost: bool = False
    pausing: bool = False
    stopped: bool = False
    counter: int = 0

    @property
    def trains(self) -> bool:
        return bool(self.members) and not self.broken and not self.stopped

    @property
    def survivors(self) -> list[Worker]:
        return [self.workers[member] for member in self.members if member in self.workers]

    def remove(self, worker_id: str) -> None:
        del self.workers[worker_id]
        if worker_id in self.members:
            self.broken = self.member_lost = True


class MembershipMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.num_joined = 0

    @rule(node=st.integers(0, 3))
    def join(self, node: int) -> None:
        """A worker gets warm: with an initial state before the first epoch, rehearsed after."""
        worker_id = f"w{self.num_joined}"
        self.num_joined += 1
        history = [] if not self.run.members else None
        self.run.workers[worker_id] = Worker(worker_id, f"node{node}", history)

    @precondition(lambda self: self.run.workers)
    @rule(which=WORKERS)
    def lose(self, which: int) -> None:
        """A worker dies, or hangs and is killed."""
        workers = list(self.run.workers)
        self.run.remove(workers[which % len(workers)])

    @precondition(lambda self: self.run.trains)
    @rule()
    def fail_group(self) -> None:
        """A collective fails though everybody lives."""
        self.run.broken = True

    @precondition(lambda self: self.run.trains)
    @rule()
    def commit(self) -> None:
        """A whole step, at whose boundary the world grows if it was asked to."""
        self._apply(range(TARGET), tail_done=True)
        if self.run.pausing:
            self._form()

    @precondition(lambda self: self.run.trains)
    @rule(applied=SUBSETS, lost=SUBSETS)
    def half_commit(self, applied: frozenset[int], lost: frozenset[int]) -> None:
        """All records went out; some ranks saw them all, some are gone, the group is broken."""
        self._apply(applied, tail_done=False)
        self.run.broken = True
        for rank in lost:
            if rank < len(self.run.members):
                self.run.remove(self.run.members[rank])

    @precondition(lambda self: not self.run.stopped)
    @rule(interrupted=st.booleans())
    def coordinate(self, *, interrupted: bool) -> None:
        """The coordinator looks. Healing may break off: the receivers then hold no state."""
        run = self.run
        move = decide_move(self._situation())
        present = len(run.workers)
        match move:
            case CarryOn():
                assert run.trains
                assert run.pausing or present <= len(run.members) or len(run.members) == TARGET
            case PauseToGrow(members):
                assert run.trains
                assert len(members) > len(run.members)
                run.pausing = True
            case WaitForWorkers(num_available, num_needed):
                assert not run.trains
                assert num_available == present < num_needed
            case FormEpoch(members):
                assert not run.trains
                assert len(members) >= (MINIMUM if run.members else TARGET)
                self._form(interrupted=interrupted)

    @invariant()
    def survivors_hold_one_history(self) -> None:
        """Two live states differ by at most the last step, and never in what they share."""
        histories = [w.history for w in self.run.survivors if w.history is not None]
        for one in histories:
            for other in histories:
                shared = min(len(one), len(other))
                assert one[:shared] == other[:shared]
                assert abs(len(one) - len(other)) <= 1

    def _situation(self) -> Situation:
        run = self.run
        available = tuple(Candidate(w.worker_id, w.node_id) for w in run.workers.values())
        return Situation(run.members, run.broken, available, MINIMUM, TARGET, run.pausing)

    def _apply(self, ranks, *, tail_done: bool) -> None:
        for rank, member in enumerate(self.run.members):
            worker = self.run.workers[member]
            assert worker.history is not None, "a member that trains holds a state"
            if rank in ranks:
                worker.history.append(EpochId(1, self.run.counter))
                worker.tail_done = tail_done

    def _form(self, *, interrupted: bool = False) -> None:
        run = self.run
        run.counter += 1
        before = run.members
        # At a boundary the members leave together for the larger world that was decided on.
        move = decide_move(
            Situation(
                before, bool(before), self._situation().available, MINIMUM, TARGET, run.pausing
            )
        )
        assert isinstance(move, FormEpoch)
        spec = EpochSpec(EpochId(1, run.counter), move.members, "", 0)
        self._check_ranks(before, spec.members)
        members = [run.workers[member] for member in spec.members]
        reports = [MemberReport(w.worker_id, w.version, tail_done=w.tail_done) for w in members]
        try:
            plan = plan_recovery(spec, reports, member_lost=run.member_lost)
        except NoLiveStateError:
            assert all(worker.history is None for worker in members)
            run.stopped = True
            return
        self._check_plan(plan, members)
        self._heal(plan, members, interrupted=interrupted)
        run.members, run.pausing = spec.members, False
        run.broken, run.member_lost = interrupted, False

    def _check_ranks(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        assert len(set(after)) == len(after)
        assert set(after) <= self.run.workers.keys()
        kept = [member for member in before if member in self.run.workers]
        assert [member for member in after if member in before] == kept, "no survivor is left out"
        if len(after) == len(before):
            assert all(after[before.index(member)] == member for member in kept)

    def _check_plan(self, plan, members: list[Worker]) -> None:
        held = [worker.version for worker in members if worker.version is not None]
        assert plan.base == max(held), "no step that a survivor committed is lost"
        holders = {rank for rank, worker in enumerate(members) if worker.version == plan.base}
        assert set(plan.sources.values()) <= holders, "nobody heals from a laggard"
        assert plan.sources.keys().isdisjoint(plan.sources.values())
        needy = set(range(len(members))) - holders
        if plan.base.step:
            assert plan.sources.keys() == needy
        else:
            assert len(plan.sources) == len(members) - 1
        if self.run.member_lost and plan.base.step:
            assert plan.replay_tail

    def _heal(self, plan, members: list[Worker], *, interrupted: bool) -> None:
        for target, source in plan.sources.items():
            given = members[source].history
            members[target].history = None if interrupted or given is None else [*given]
            members[target].tail_done = not plan.replay_tail
        for worker in members:
            worker.tail_done &= not plan.replay_tail
        if not interrupted:
            assert len({worker.version for worker in members}) == 1, "one common step"


MembershipMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestMembership = MembershipMachine.TestCase
