"""Actors without Ray: their calls return futures that a test answers."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.epoch_gate import Standing
from trainflow.computation.reports import StepReport
from trainflow.coordination.background import Background
from trainflow.coordination.copy_pace import CopyPace
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending
from trainflow.coordination.worker_pool import WorkerEntry
from trainflow.epochs import (
    EpochSpec,
    Flag,
    HeldState,
    MemberReport,
    RecoveryPlan,
    StoredState,
    Version,
)


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("the coordinator must not block")


class OneLook(FakeClock):
    """Lets a thread look once, at the time that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Event()

    def unix_s(self) -> float:
        return SYSTEM_CLOCK.unix_s()

    def monotonic_s(self) -> float:
        return SYSTEM_CLOCK.monotonic_s()

    def sleep(self, duration_s: float) -> None:
        self.looked.set()
        threading.Event().wait()  # a daemon's thread


class SleepyClock(FakeClock):
    """Time passes only while somebody sleeps."""

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def free_pace(clock: FakeClock) -> CopyPace:
    """Return the pace of copies that have the link to themselves."""
    return CopyPace(30.0, None, lambda: False, clock)


class Method:
    """An actor's method: a call returns a future of what ``answer`` returns or raises."""

    def __init__(self, answer: Callable[..., Any]):
        self._answer = answer

    def remote(self, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._call(*args, **kwargs))

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._answer(*args, **kwargs)
        return await answer if asyncio.iscoroutine(answer) else answer


class FakeWorker:
    """A worker that parks and connects at once; ``stuck`` makes it wait for ever in ``form``."""

    def __init__(self, worker_id: str, version: Version | None):
        self.worker_id = worker_id
        self.version = version
        self.stuck = False
        self.formed: list[EpochSpec] = []
        self.plans: list[RecoveryPlan] = []
        self.requested: list[Flag] = []
        self.steps: tuple[StepReport, ...] = ()
        self.on_begin: Callable[[RecoveryPlan], None] = lambda plan: None
        self.description: WorkerDescription | None = describe(worker_id)
        self.form = Method(self._form)
        self.begin = Method(self._begin)
        self.request = Method(self.requested.append)
        self.steps_up_to = Method(self._steps_up_to)
        self.describe = Method(self._describe)
        self.stand = Method(lambda: None)
        self.run = Method(lambda: None)

    async def _form(self, spec: EpochSpec, *, at_boundary: bool) -> MemberReport:
        self.formed.append(spec)
        if self.stuck:
            await asyncio.Event().wait()
        return MemberReport(self.worker_id, self.version, tail_done=True)

    def _steps_up_to(self, base: Version, after: int) -> tuple[StepReport, ...]:
        return Standing(self.version, steps=self.steps).steps_up_to(base, after)

    def _begin(self, plan: RecoveryPlan) -> None:
        self.plans.append(plan)
        self.version = plan.base
        self.on_begin(plan)

    async def _describe(self) -> WorkerDescription:
        if self.description is None:
            await asyncio.Event().wait()
        assert self.description is not None, "else it waits"
        return self.description


def describe(worker_id: str, **others: Any) -> WorkerDescription:
    return WorkerDescription(
        worker_id=worker_id,
        node_id=f"node of {worker_id}",
        node_labels={},
        pid=1,
        host="127.0.0.1",
        store_port=1,
        presence_port=1,
        **{"ready": True} | others,
    )


class FakePool:
    """The pool's entries, without a watch on them."""

    def __init__(self, workers: Sequence[FakeWorker] = (), num_bundles: int = 4):
        self._num_bundles = num_bundles
        self.bundles: Any = self
        self.left: set[str] = set()
        self.entries = {
            each.worker_id: WorkerEntry(each.worker_id, each, describe(each.worker_id))
            for each in workers
        }

    def num_bundles(self) -> int:
        return self._num_bundles

    def bundle_nodes(self) -> dict[int, str]:
        return {}

    async def look_at_bundles(self) -> dict[int, str]:
        return dict(self.bundle_nodes())

    def numbers(self) -> set[int]:
        return set(range(self._num_bundles))

    def adopt(self, worker_id: str, actor: Any) -> WorkerEntry:
        self.entries[worker_id] = WorkerEntry(worker_id, actor)
        return self.entries[worker_id]

    def nodes_of(self, worker_ids: Iterable[str]) -> dict[str, str]:
        entries = {each: self.entries[each] for each in worker_ids if each in self.entries}
        return {k: each.description.node_id for k, each in entries.items() if each.description}

    async def wait_description(self, worker_id: str) -> WorkerDescription | None:
        entry = self.entries.get(worker_id)
        return None if entry is None else await entry.actor.describe.remote()

    async def wait_left(self, worker_id: str) -> None:
        """It has, as soon as that is waited for."""
        if worker_id in self.entries:
            self.left.add(worker_id)

    def have_stopped(self, members: Iterable[str]) -> bool:
        return not self.left.isdisjoint(members)

    def describe(self, description: WorkerDescription) -> None:
        if description.worker_id in self.entries:
            self.entries[description.worker_id].description = description


@dataclass
class FakeKept:
    """Nothing is kept but what a test puts there; notes where members are."""

    newest: StoredState | HeldState | None = None
    node_of: Mapping[str, str] = field(default_factory=dict)

    async def plan(
        self, spec: EpochSpec, reports: Sequence[MemberReport], **known: Any
    ) -> RecoveryPlan:
        return plan_recovery(spec, reports, stored=self.newest, **known)

    def send_copies(self, _spec: EpochSpec, node_of: Mapping[str, str]) -> None:
        self.node_of = node_of

    def on_formed(self, _plan: RecoveryPlan, node_of: Mapping[str, str]) -> None:
        self.node_of = node_of


@dataclass
class FakeSuperior:
    """Notes what it is told, and drops lost workers from the pool."""

    pool: FakePool
    endings: list[Ending] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lost: list[tuple[str, ...]] = field(default_factory=list)
    on_lost: Callable[[WorkerEntry, str], None] = lambda entry, cause: None

    def end(self, ending: Ending) -> None:
        self.endings.append(ending)

    def spend(self, text: str) -> bool:
        self.failures.append(text)
        return False

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        self.lost.append(tuple(worker_ids))
        gone = [self.pool.entries.pop(each, None) for each in worker_ids]
        for entry in gone:
            if entry is not None:
                self.on_lost(entry, cause)


def guard_of(record: RunRecord, clock: FakeClock | None = None) -> DetectorGuard:
    """Return what isolates detectors; nothing beside them may fail."""

    def refuse(trace: str) -> None:
        raise AssertionError(trace)

    return DetectorGuard(record, Background(refuse), FakeClock() if clock is None else clock)


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], deadline_s: float = 5.0) -> None:
    """Wait for a state; fails if it isn't reached in time."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  any condition, not an event
            await asyncio.sleep(0.002)
