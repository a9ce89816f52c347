"""What the processes of two jobs, and Ray's agent beside them, compute while the jobs take turns.

It is read as each turn begins, so that what a job computes in its own turns and what it computes
while it waits are told apart: what goes by time alone goes on while another has its turn.

Process: the harness.  Blocks: until the last turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.turns import Turns, block_medians
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.driver import Run

TURNS_A_QUAD = 4
_POLL_S = 0.005
_SETTLES_S = 0.1
_LOOK_EVERY_S = 5.0
_ALL_THREADS = 2  # CPUCLOCK_SCHED of the kernel
_NS_PER_S = 1e9


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

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.coordinator_s + other.coordinator_s, self.all_s + other.all_s)


@dataclass(frozen=True)
class Reading:
    """What has been computed so far.

    Attributes:
        at_s: when that was.
        spent: of each job.
        agent_s: CPU-seconds of Ray's agent, which serves both.
    """

    at_s: float
    spent: tuple[Spent, ...]
    agent_s: float


@dataclass(frozen=True)
class Quad:
    """Four neighbouring turns, A B B A: two blocks of each job.

    Attributes:
        step_s: the sum of the median step times of each job's two blocks, by its place.
        own: what each job computed in its own two turns.
        waiting: what each computed while the other had its turns.
        agent_s: what Ray's agent computed in all four.
        wall_s: what they took.
    """

    step_s: tuple[float, float]
    own: tuple[Spent, Spent]
    waiting: tuple[Spent, Spent]
    agent_s: float
    wall_s: float

    def all_s(self, side: int) -> float:
        """Return what all processes of a job computed, in its turns and while it waited."""
        return self.own[side].all_s + self.waiting[side].all_s


class JobProcesses:
    """The processes of one run, which must stay the same."""

    def __init__(self, run: Run):
        workers = run.workers()
        keepers = {run.keeper_pid(each["node_id"]) for each in workers}
        self._coordinator = run.coordinator_pid()
        self._others = {*keepers, *(each["pid"] for each in workers)}

    def read(self) -> Spent:
        """Return what they have computed so far."""
        coordinator_s = read_cpu_s(self._coordinator)
        return Spent(coordinator_s, coordinator_s + sum(map(read_cpu_s, self._others)))


def read_cpu_s(pid: int) -> float:
    """Return the CPU-seconds of all threads of a process, also of those that have ended.

    They are those of the process's CPU clock (clock_getcpuclockid), in nanoseconds: /proc has them
    in hundredths of a second, which is as much as an agent computes in one.
    """
    return time.clock_gettime_ns((~pid << 3) | _ALL_THREADS) / _NS_PER_S


def find_agents(processes: Sequence[psutil.Process]) -> list[int]:
    """Return the ids of those that take metrics from all others of a node and show them.

    Raises:
        RuntimeError: there are none.
    """
    found = [
        each.pid for each in processes if any("dashboard/agent.py" in w for w in each.cmdline())
    ]
    if not found:
        raise RuntimeError("Ray's agent is not there, so that what it computes is not known")
    return found


def follow_turns(
    turns: Turns,
    runs: Sequence[Run],
    list_processes: Callable[[], Sequence[psutil.Process]],
    num_quads: int,
    within_s: float,
) -> Iterator[Reading]:
    """Yield what has been computed as each turn begins, from the second quad's to the last quad's.

    In the first all warm up, and in the last whoever has done its turns ends. It is read a moment
    later, the same each time: what the last step of a turn leaves to be done belongs to that turn.

    Args:
        turns: whose it is.
        runs: those that take turns.
        list_processes: of the head, Ray's agent among them.
        num_quads: that are run.
        within_s: how long that may take.

    Raises:
        RuntimeError: a run failed, or didn't get there in time.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + within_s
    _wait_turn(turns, 1, runs, deadline_s)  # from then on all processes are there
    processes, agents = [JobProcesses(run) for run in runs], find_agents(list_processes())
    for turn in range(TURNS_A_QUAD, TURNS_A_QUAD * (num_quads - 1) + 1):
        _wait_turn(turns, turn, runs, deadline_s)
        SYSTEM_CLOCK.sleep(_SETTLES_S)
        at_s, agent_s = SYSTEM_CLOCK.monotonic_s(), sum(map(read_cpu_s, agents))
        yield Reading(at_s, tuple(each.read() for each in processes), agent_s)


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
    work_dir: Path, systems: tuple[str, str], first: int, readings: Sequence[Reading]
) -> list[Quad]:
    """Return the quads of a round that count: all but the first and the last.

    Args:
        work_dir: where ranks have left their step times.
        systems: both jobs' names there.
        first: which of both had the first turn.
        readings: see `follow_turns`.
    """
    medians = [block_medians(work_dir, system) for system in systems]
    quads: list[Quad] = []
    for begin in range(0, len(readings) - 1, TURNS_A_QUAD):
        block = 2 + begin // 2
        first_s, second_s = (sum(each[block : block + 2]) for each in medians)
        within = readings[begin : begin + TURNS_A_QUAD + 1]
        outer, inner = _sum_turns(within, (0, 3)), _sum_turns(within, (1, 2))
        a, b = (outer, inner) if first == 0 else (inner, outer)
        last, agent_s = within[-1], within[-1].agent_s - within[0].agent_s
        wall_s = last.at_s - within[0].at_s
        quads.append(Quad((first_s, second_s), (a[0], b[1]), (b[0], a[1]), agent_s, wall_s))
    return quads


def _sum_turns(readings: Sequence[Reading], places: tuple[int, int]) -> tuple[Spent, Spent]:
    """Return what each job computed in two of a quad's turns."""
    turns = [
        [b.since(a) for a, b in zip(before.spent, after.spent, strict=True)]
        for before, after in pairwise(readings)
    ]
    one, other = (turns[place] for place in places)
    return one[0] + other[0], one[1] + other[1]
