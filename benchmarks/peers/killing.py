"""Kill a member at a random phase of its step, wait until all ranks go on, and again.

Process: the harness, outside the measured system.  Kills only pids that the system's events name.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.events import STEP, Event, EventTail
from benchmarks.peers.samples import Kill, find_recovery, median_step_s
from trainflow.clock import Clock

POLL_S = 0.02


@dataclass(frozen=True)
class KillPlan:
    """How many kills, and when the system counts as settled before each.

    Attributes:
        num_kills: Kills, one after the other.
        seed: Of the choice of victims and phases.
        num_processes: Members and spares that must all have joined before a kill.
        settled_steps: Steps that each of them must have finished under one membership.
        timeout_s: Longest wait for settling, and for recovering.
    """

    num_kills: int
    seed: int
    num_processes: int
    settled_steps: int = 8
    timeout_s: float = 120.0


def kill_process(pid: int) -> None:
    """SIGKILL one process."""
    os.kill(pid, signal.SIGKILL)


def stop_process(pid: int) -> None:
    """SIGSTOP one process: it lives, keeps its connections, and does nothing any more."""
    os.kill(pid, signal.SIGSTOP)


@dataclass(frozen=True)
class Harness:
    """What the kill loop acts through: the events, time, and the system's own supervision.

    ``supervise`` is called at every poll: it restarts what the system's supervisor would restart,
    and raises when the system as a whole is gone. ``kill`` is given the pid of a member, and ends
    or stops its process, or all that shares its fate.
    """

    tail: EventTail
    clock: Clock
    supervise: Callable[[], None]
    kill: Callable[[int], None] = kill_process


def execute_kills(plan: KillPlan, harness: Harness) -> list[Kill]:
    """Carry out the plan; on return the last kill is recovered from.

    Raises:
        TimeoutError: the system did not settle, or did not recover, in ``plan.timeout_s``.
    """
    rng = random.Random(plan.seed)
    return [_execute_kill(plan, harness, rng) for _ in range(plan.num_kills)]


def _execute_kill(plan: KillPlan, harness: Harness, rng: random.Random) -> Kill:
    wait_until(harness, plan.timeout_s, "settle", lambda events: is_settled(events, plan))
    events = harness.tail.events
    victim = rng.choice(newest_members(events))
    step_s = median_step_s(events, victim.generation)
    phase_ratio = rng.random()
    wait_until(
        harness,
        plan.timeout_s,
        "finish a step",
        lambda seen: _newest_step(seen, victim.pid) != victim,
    )
    step_start_s = _newest_step(harness.tail.events, victim.pid).unix_s
    harness.clock.sleep(max(0.0, step_start_s + phase_ratio * step_s - harness.clock.unix_s()))
    num_before = len(harness.tail.events)
    kill = Kill(unix_s=harness.clock.unix_s(), pid=victim.pid, generation=victim.generation)
    harness.kill(victim.pid)
    wait_until(
        harness,
        plan.timeout_s,
        "recover",
        lambda seen: find_recovery(seen[num_before:], kill) is not None,
    )
    return kill


def is_settled(events: Sequence[Event], plan: KillPlan) -> bool:
    """Tell whether every process has finished enough steps under the newest membership."""
    steps = [e for e in events if e.name == STEP]
    newest = max((e.generation for e in steps), default=-1)
    counts = Counter(e.pid for e in steps if e.generation == newest)
    settled = [pid for pid, count in counts.items() if count >= plan.settled_steps]
    return len(settled) == plan.num_processes


def newest_members(events: Sequence[Event]) -> list[Event]:
    """Return the newest finished step of each rank of the newest membership, by rank."""
    steps = [e for e in events if e.name == STEP]
    newest = max(e.generation for e in steps)
    by_rank = {e.rank: e for e in steps if e.generation == newest and e.rank >= 0}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _newest_step(events: Sequence[Event], pid: int) -> Event:
    return next(e for e in reversed(events) if e.name == STEP and e.pid == pid)


def wait_until(
    harness: Harness, timeout_s: float, what: str, reached: Callable[[Sequence[Event]], bool]
) -> None:
    """Poll the events until they satisfy ``reached``; raises TimeoutError if they don't in time."""
    deadline_s = harness.clock.monotonic_s() + timeout_s
    while not reached(harness.tail.poll()):
        harness.supervise()
        if harness.clock.monotonic_s() > deadline_s:
            raise TimeoutError(f"the system did not {what} within {timeout_s:g} s")
        harness.clock.sleep(POLL_S)
