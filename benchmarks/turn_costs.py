"""What the processes of two jobs compute while they take turns.

Process: the harness.  Blocks: until the last turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.turns import Turns, block_medians
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.driver import Run

TURNS_A_QUAD = 4
_POLL_S = 0.005
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Spent:
    """CPU-seconds of one job.

    Attributes:
        coordinator_s: of its coordinator.
        all_s: of this, its workers and its Keepers.
    """

    coordinator_s: float
    all_s: float

    def since(self, before: "Spent") -> "Spent":
        """Return what has been computed from then on."""
        return Spent(self.coordinator_s - before.coordinator_s, self.all_s - before.all_s)


@dataclass(frozen=True)
class Quad:
    """Four neighbouring turns, A B B A: two blocks of each job.

    Attributes:
        step_s: the sum of the median step times of each job's two blocks, by its place.
        spent: what each job computed meanwhile, in its turns and while it waited.
    """

    step_s: tuple[float, float]
    spent: tuple[Spent, Spent]


class JobProcesses:
    """The processes of one run, which must stay the same."""

    def __init__(self, run: Run):
        workers = run.workers()
        keepers = {run.keeper_pid(each["node_id"]) for each in workers}
        self._coordinator = psutil.Process(run.coordinator_pid())
        others = {*keepers, *(each["pid"] for each in workers)}
        self._others = [psutil.Process(pid) for pid in others]

    def read(self) -> Spent:
        """Return what they have computed so far."""
        coordinator_s = read_cpu_s(self._coordinator)
        return Spent(coordinator_s, coordinator_s + sum(map(read_cpu_s, self._others)))


def read_cpu_s(process: psutil.Process) -> float:
    """Return the CPU-seconds of all threads of a process, in user mode and in the kernel."""
    times = process.cpu_times()
    return times.user + times.system


def find_agents(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that take metrics from all others of a node and show them."""
    return [each for each in processes if any("dashboard/agent.py" in w for w in each.cmdline())]


def follow_quads(
    turns: Turns, runs: Sequence[Run], num_quads: int, within_s: float
) -> Iterator[tuple[Spent, ...]]:
    """Yield what each run has computed so far, as each quad begins.

    The end of the last one is not looked at: whoever has done its turns in it ends.

    Raises:
        RuntimeError: a run failed, or didn't get there in time.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + within_s
    _wait_turn(turns, 1, runs, deadline_s)  # from then on all processes are there
    processes = [JobProcesses(run) for run in runs]
    for quad in range(num_quads):
        _wait_turn(turns, TURNS_A_QUAD * quad, runs, deadline_s)
        yield tuple(each.read() for each in processes)


def _wait_turn(turns: Turns, turn: int, runs: Sequence[Run], deadline_s: float) -> None:
    looked_at_s = SYSTEM_CLOCK.monotonic_s()
    while turns.block < turn:
        SYSTEM_CLOCK.sleep(_POLL_S)
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - looked_at_s > _LOOK_EVERY_S:
            looked_at_s = now_s
            _require_going_on(runs, is_late=now_s > deadline_s)


def _require_going_on(runs: Sequence[Run], *, is_late: bool) -> None:
    for run in runs:
        status = run.status()
        if is_late or status["state"] == "failed":
            raise RuntimeError(f"{run.job_id} did not get to its end: {status['ending']}")


def join_quads(
    work_dir: Path, systems: tuple[str, str], readings: Sequence[tuple[Spent, ...]]
) -> list[Quad]:
    """Return all quads of a round but the last.

    Args:
        work_dir: where ranks have left their step times.
        systems: both jobs' names there.
        readings: see `follow_quads`.
    """
    medians = [block_medians(work_dir, system) for system in systems]
    quads: list[Quad] = []
    for number, (before, after) in enumerate(pairwise(readings)):
        blocks = slice(2 * number, 2 * number + 2)
        first_s, second_s = (sum(each[blocks]) for each in medians)
        first, second = (b.since(a) for a, b in zip(before, after, strict=True))
        quads.append(Quad((first_s, second_s), (first, second)))
    return quads
