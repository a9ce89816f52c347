"""Real ranks without Ray: spawn processes, form their epochs, kill some, and keep the books.

The coordinator here is a loop over pipes in the test's own process. It decides with the product's
pure functions (`decide_move`, `plan_recovery`, `judge_progress`) and only carries out. Whatever
happens in a test, every process is killed at its end; one that outlives the test run is killed by
the kernel.
"""

import os
import signal
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from tests.distributed.case import Case, Outcome
from tests.distributed.faults import Act
from tests.distributed.rank_process import run_rank
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.computation.reports import (
    CompressionChosen,
    EvaluationReport,
    RanksDiffer,
    ResidualsLost,
    StepReport,
    TensorDigests,
)
from trainflow.computation.stamps import read_stamp
from trainflow.coordination.hang_detection import Limits, Progress, judge_progress
from trainflow.coordination.membership import (
    Candidate,
    FormEpoch,
    PauseToGrow,
    Situation,
    decide_move,
    next_members,
)
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.coordination.sharded_recovery import Copies, Found, plan_sharded_recovery
from trainflow.epochs import EpochId, EpochSpec, Flag, MemberReport, RecoveryPlan

HOST = "127.0.0.1"
DEADLINE_S = 60.0
HANG_TIMEOUT_S = 4.0
LOOK_EVERY_S = 0.2
SNAPSHOT_RANKS = 2  # where there is a place for checkpoints

# Forked from a server that has all loaded that a rank will: one is up in a tenth of a second.
_processes = get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "pytest",
        "numpy.ma",
        "torch._dynamo",
        "tests.distributed.rank_process",
        "tests.distributed.training",
        "tests.frozen_heap",
    ]
)


class _Worker:
    """One process, as the coordinator sees it."""

    def __init__(self, worker_id: str, case: Case, directory: Path, *, is_spare: bool):
        self.worker_id = worker_id
        self.is_spare = is_spare
        self.line, theirs = _processes.Pipe()
        self.process = _processes.Process(
            target=run_rank,
            args=(theirs, worker_id, case, str(directory)),
            kwargs={"rehearse": is_spare},
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.store_port: int | None = None

    def send(self, *message: Any) -> None:
        with suppress(OSError):  # dead: the end of its line tells the coordinator
            self.line.send(message)

    def kill(self) -> None:
        if self.process.pid is not None:
            self.process.kill()
        self.process.join()
        self.process.close()
        self.line.close()


class Coordinator:
    """Runs one case to its end."""

    def __init__(self, case: Case, directory: Path):
        self._case = case
        self._directory = directory
        workers = case.job.workers
        self._workers = {
            f"w{i}": _Worker(f"w{i}", case, directory, is_spare=i >= workers.target)
            for i in range(workers.target + workers.spares)
        }
        self._all = list(self._workers.values())
        # What Keepers are to a cluster; one that is lost with its node is there and has nothing.
        self._held = HeldSnapshots(directory / "lost" if case.nodes_are_lost else directory)
        self._servers = [SnapshotServer(self._held, "test", HOST)]
        self._outcome = Outcome(pids={w.worker_id: w.process.pid or 0 for w in self._all})
        self._members: tuple[str, ...] = ()
        self._forming: EpochSpec | None = None
        self._answers: dict[str, MemberReport | str] = {}
        self._broken = self._member_lost = self._pausing = False
        self._counter = 0
        self._committed: dict[int, EpochId] = {}
        self._tries: dict[tuple[int, EpochId], Counter[int]] = defaultdict(Counter)

    def run(self) -> Outcome:
        """Train to the end; raises AssertionError if that takes too long."""
        start_s = time.monotonic()
        try:
            while not self._is_over():
                if time.monotonic() > start_s + DEADLINE_S:
                    self._fail_late()
                self._take_messages()
                self._judge_hangs()
                self._advance()
            for worker in self._workers.values():
                worker.send("close")
        finally:
            for worker in self._all:
                worker.kill()
            for server in self._servers:
                server.close()
            self._held.close()
        self._outcome.took_s = time.monotonic() - start_s
        self._outcome.used = {n: self._tries[n, epoch] for n, epoch in self._committed.items()}
        return self._outcome

    def _is_over(self) -> bool:
        done = self._outcome.results.keys() | self._outcome.crashes.keys()
        return bool(self._members) and self._forming is None and done >= set(self._members)

    def _fail_late(self) -> None:
        for worker in self._workers.values():
            os.kill(worker.process.pid or 0, signal.SIGUSR1)  # it prints where its threads are
        raise AssertionError(
            f"not done within {DEADLINE_S} s: members {self._members}, forming {self._forming}, "
            f"answers {self._answers}, steps {sorted(self._committed)}"
        )

    # What happens

    def _take_messages(self) -> None:
        lines = {worker.line: worker for worker in self._workers.values()}
        for line in connection.wait(list(lines), timeout=LOOK_EVERY_S):
            worker = lines[line]
            try:
                kind, *content = worker.line.recv()
            except (EOFError, ConnectionError):
                self._drop(worker)
            else:
                getattr(self, f"_on_{kind}")(worker, *content)

    def _judge_hangs(self) -> None:
        """Leave a hung worker behind, but alive: it must not hold anybody up.

        Only where a rank is stopped: on a busy machine others may stand still for seconds, too, and
        a world that shrinks for that has other bits.
        """
        if not any(fault.act is Act.STOP for fault in self._case.faults):
            return
        progress: dict[str, Progress] = {}
        now_s = time.monotonic()
        for worker_id in self._workers:
            stamp = read_stamp(self._directory / worker_id)
            if stamp is not None:
                ages_s = now_s - stamp.progress_at_s, now_s - stamp.pulse_at_s
                progress[worker_id] = Progress(
                    stamp.pid, stamp.step, stamp.epoch, stamp.phase, *ages_s
                )
        for worker_id, hang in judge_progress(progress, Limits(HANG_TIMEOUT_S)).hung.items():
            self._outcome.hung[worker_id] = hang.text
            self._drop(self._workers[worker_id])

    def _drop(self, worker: _Worker) -> None:
        """A worker is dead, or is to be treated so."""
        self._workers.pop(worker.worker_id, None)
        assert self._workers, "every process is gone; what they printed says why"
        if worker.worker_id in self._members and worker.worker_id not in self._outcome.crashes:
            self._broken = self._member_lost = True

    def _on_ready(self, worker: _Worker, store_port: int) -> None:
        worker.store_port = store_port

    def _on_formed(self, worker: _Worker, epoch: EpochId, answer: MemberReport | str) -> None:
        if self._forming is not None and epoch == self._forming.epoch:
            self._answers[worker.worker_id] = answer

    def _on_group_failed(self, worker: _Worker, epoch: EpochId, reason: str) -> None:
        if self._outcome.plans and epoch == self._outcome.plans[-1].spec.epoch:
            self._broken = True

    def _on_used(self, _: _Worker, step: int, epoch: EpochId, indices: list[int]) -> None:
        self._tries[step, epoch].update(indices)

    def _on_committed(self, _: _Worker, step: int, epoch: EpochId) -> None:
        if epoch == self._outcome.plans[-1].spec.epoch or self._broken:
            assert self._committed.setdefault(step, epoch) == epoch, f"step {step} committed twice"

    def _on_report(
        self,
        _: _Worker,
        report: StepReport
        | EvaluationReport
        | CompressionChosen
        | ResidualsLost
        | TensorDigests
        | RanksDiffer,
    ) -> None:
        if isinstance(report, RanksDiffer) and report not in self._outcome.differences:
            self._outcome.differences.append(report)
        if isinstance(report, ResidualsLost):
            self._outcome.losses.append(report)
        if isinstance(report, CompressionChosen):
            self._outcome.choices.append(report)
        if isinstance(report, TensorDigests):
            self._outcome.tensors[report.step] = report.digests
        if not isinstance(report, StepReport):
            return
        self._outcome.steps[report.step] = report
        if report.pausing and not self._broken and self._forming is None:
            job = self._case.job
            wanted = next_members(
                self._members, self._available(), job.workers.target, job.group_size
            )
            self._form(wanted, at_boundary=True)

    def _on_finished(self, worker: _Worker, result: Any) -> None:
        self._outcome.results[worker.worker_id] = result

    def _on_crashed(self, worker: _Worker, kind: str, text: str) -> None:
        self._outcome.crashes[worker.worker_id] = (kind, text)

    # What follows

    def _advance(self) -> None:
        if self._forming is not None:
            if any(member not in self._workers for member in self._forming.members):
                self._forming, self._broken = None, True
            elif len(self._answers) == self._forming.world_size:
                self._begin(self._forming)
            else:
                return
        if self._is_over() or self._outcome.crashes or not self._is_ready():
            return
        workers = self._case.job.workers
        situation = Situation(
            self._members,
            self._broken,
            self._available(),
            workers.minimum,
            workers.target,
            self._pausing,
            self._case.job.group_size,
        )
        match decide_move(situation):
            case FormEpoch(members):
                self._form(members, at_boundary=False)
            case PauseToGrow():
                self._pausing = True
                self._workers[self._members[0]].send("request", Flag.PAUSE)
            case _:
                pass

    def _available(self) -> tuple[Candidate, ...]:
        newest = max(self._committed, default=0)
        return tuple(
            Candidate(worker_id, worker_id)
            for worker_id, worker in self._workers.items()
            if worker.store_port is not None
            and newest >= self._case.late.get(worker_id, 0)
            and (self._members or not worker.is_spare)
        )

    def _is_ready(self) -> bool:
        """Nothing begins before all are warm, so that a spare is there when it is needed."""
        return all(worker.store_port is not None for worker in self._workers.values())

    def _form(self, members: tuple[str, ...], *, at_boundary: bool) -> None:
        self._counter += 1
        port = self._workers[members[0]].store_port
        assert port is not None, "members are ready"
        copying = tuple(range(min(SNAPSHOT_RANKS, len(members))))
        nodes = tuple(self._case.nodes[member] for member in members if self._case.nodes)
        epoch = EpochId(1, self._counter)
        shard_size = self._case.job.shard_size(len(members))
        self._forming = EpochSpec(
            epoch, members, HOST, port, copying, nodes=nodes, shard_size=shard_size
        )
        self._answers = {}
        for member in members:
            self._workers[member].send("form", self._forming, at_boundary)

    def _begin(self, spec: EpochSpec) -> None:
        answers = [self._answers[member] for member in spec.members]
        self._forming = None
        if any(isinstance(answer, str) for answer in answers):
            self._broken = True
            return
        plan = self._plan(spec, answers)
        plan = replace(plan, keepers=tuple(server.address for server in self._servers))
        self._committed = {n: e for n, e in self._committed.items() if n <= plan.base.step}
        step, epoch = plan.base.step, plan.base.epoch
        if step and epoch.incarnation:  # of this run; maybe nobody lived to say that it was made
            self._committed.setdefault(step, epoch)
        assert self._committed.get(step, epoch) == epoch
        self._members = spec.members
        self._broken = self._member_lost = self._pausing = False
        self._outcome.plans.append(plan)
        self._outcome.reports.append(answers)
        for member in spec.members:
            self._workers[member].send("begin", plan)

    def _plan(self, spec: EpochSpec, answers: list[MemberReport]) -> RecoveryPlan:
        if not self._case.job.parallel.is_sharded:
            return plan_recovery(spec, answers, member_lost=self._member_lost)
        found = Found([Copies(self._servers[0].address, self._held.all_held())])
        return plan_sharded_recovery(spec, answers, found, member_lost=self._member_lost)


def run_case(case: Case, directory: Path) -> Outcome:
    """Run a case in processes of its own."""
    return Coordinator(case, directory).run()
