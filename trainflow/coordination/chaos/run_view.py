"""What a run's coordinator has told last, asked again and again.

A coordinator that restarts keeps whoever asks it waiting. Faults have their times, so the asking
has a thread of its own, and who acts goes by the newest answer.

Process: driver.  Thread: one of its own asks; any may look.  Blocks: `close`, for one answer.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import psutil

from trainflow.clock import Clock
from trainflow.coordination.chaos.leftovers import Traces
from trainflow.coordination.forkserver.processes import find_servers
from trainflow.errors import CoordinationError, UnreachableError

_ASK_EVERY_S = 0.2
_NOTE_EVERY_S = 2.0
_SILENT_AT_MOST_S = 60.0
_NO_STEPS = 2**62


class SeenRun(Protocol):
    """What seeing needs of `trainflow.coordination.driver.Run`."""

    job_id: str

    def status(self, since_event: int = 0, since_step: int = 0) -> dict[str, Any]:
        """Return where the run stands."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """Return its workers."""
        ...

    def coordinator_pid(self) -> int:
        """Return the pid of the coordinator's process."""
        ...

    def keeper_pid(self, node_id: str) -> int:
        """Return the pid of a node's Keeper."""
        ...


class RunView:
    """The newest answers of one run.

    Attributes:
        status: as `Coordinator.status` has it, its events and steps left out; {} before the first.
        workers: as `Coordinator.workers` has them, at about that time.
        asked_at_s: CLOCK_MONOTONIC of when these were asked for.
        coordinator_pid: None before the first answer.
        keeper_pids: by node.
        most_spares: how many were warm at most while it trained; None: it hasn't been seen to.
        traces: what was seen of the run's processes.
        gone: why there will be no more answers, or None.
    """

    def __init__(self, run: SeenRun, clock: Clock, stopped_s: float = 0.0):
        """See nothing yet.

        Args:
            run: what is asked.
            clock: tells for how long it is silent.
            stopped_s: for how long faults of the plan have its coordinator stand still, in all.
        """
        self.status: dict[str, Any] = {}
        self.workers: list[dict[str, Any]] = []
        self.asked_at_s = float("-inf")
        self.coordinator_pid: int | None = None
        self.keeper_pids: dict[str, int] = {}
        self.most_spares: int | None = None
        self.traces = Traces()
        self.gone: str | None = None
        self._run = run
        self._clock = clock
        self._closed = threading.Event()
        self._answered_at_s = clock.monotonic_s()
        self._silent_at_most_s = _SILENT_AT_MOST_S + stopped_s
        self._noted_at_s = float("-inf")
        self._begun: set[str] = set()
        self._noted: set[int] = set()
        self._cpu_s: dict[str, float] = {}
        self._first_servers: set[psutil.Process] = set()
        self._server_cpu_s: dict[psutil.Process, float] = {}
        self._thread = threading.Thread(target=self._ask_on, name="run-view", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or nobody can tell any more."""
        return self.gone is not None or bool(self.status.get("ending"))

    @property
    def starting_cpu_s(self) -> float:
        """CPU time that workers took to start that were begun after the first step, at least.

        Of each process from its own beginning until it was seen to stand by; one that was never
        seen before it was a member counts for nothing. Besides that of the servers they are forked
        from, of those begun after the first step.
        """
        return sum(self._cpu_s.values()) + sum(self._server_cpu_s.values())

    def is_warm(self, num_spares: int) -> bool:
        """Whether the run trains, with all of its spares standing by."""
        status = self.status
        trains = status.get("state") == "running" and status["step"] > 0
        return trains and status["spares"] >= num_spares

    def _ask_on(self) -> None:
        while not self._closed.wait(_ASK_EVERY_S) and not self.is_over:
            try:
                self._ask()
                self._answered_at_s = self._clock.monotonic_s()
            except UnreachableError as error:
                if self._clock.monotonic_s() - self._answered_at_s > self._silent_at_most_s:
                    self.gone = str(error)
            except CoordinationError as error:
                self.gone = str(error)
            except Exception as error:  # noqa: BLE001  whatever it is, who waits must not wait on
                self.gone = f"asking it failed: {type(error).__name__}: {error}"

    def _ask(self) -> None:
        asked_at_s = self._clock.monotonic_s()
        status = self._run.status(since_event=_NO_STEPS, since_step=_NO_STEPS)
        workers = self._run.workers()
        now_s = self._clock.monotonic_s()
        is_late = now_s - self._noted_at_s > _NOTE_EVERY_S
        if is_late or status["ending"] or self._has_new(workers):
            self._noted_at_s = now_s
            self._note(workers)
            self._measure_servers(is_training=status["step"] > 0)
        if status["state"] == "running" and status["step"] > 0:
            self.most_spares = max(self.most_spares or 0, status["spares"])
        self._measure_starting(workers, is_training=status["step"] > 0)
        self.workers, self.asked_at_s = workers, asked_at_s
        self.status = status  # last: who sees the ending sees all that came before it

    def _has_new(self, workers: Sequence[dict[str, Any]]) -> bool:
        """Whether there are processes that a fault may be for, or may end, and that aren't noted.

        A coordinator whose process is gone is another by now: it has answered.
        """
        if not (_node_ids(workers) <= self.keeper_pids.keys()):
            return True
        is_another = self.coordinator_pid is not None and not psutil.pid_exists(
            self.coordinator_pid
        )
        return is_another or not self._pids(workers) <= self._noted

    def _note(self, workers: Sequence[dict[str, Any]]) -> None:
        """Learn the pids of all processes of the run.

        A Keeper is asked only if the one that was there is gone: one that stands still, or is cut
        off, would keep all else from being seen.
        """
        self.coordinator_pid = self._run.coordinator_pid()
        for node_id in _node_ids(workers):
            pid = self.keeper_pids.get(node_id)
            if pid is None or not psutil.pid_exists(pid):
                with suppress(UnreachableError):
                    self.keeper_pids[node_id] = self._run.keeper_pid(node_id)
        self._noted = self._pids(workers)
        self.traces.note(self._noted)

    def _pids(self, workers: Sequence[dict[str, Any]]) -> set[int]:
        found: Sequence[int | None] = [row["pid"] for row in workers]
        known = [*found, self.coordinator_pid, *self.keeper_pids.values()]
        return {pid for pid in known if pid is not None}

    def _measure_starting(self, workers: Sequence[dict[str, Any]], *, is_training: bool) -> None:
        """Note what those that start have taken, by worker; those there at the beginning are none.

        The pid of one that starts may be told no sooner than that it stands by. A new coordinator
        may yet learn who has begun.
        """
        for row in workers:
            worker_id, pid = row["worker_id"], row["pid"]
            if not is_training or row["state"] == "member":
                self._begun.add(worker_id)
            elif pid is not None and worker_id not in self._begun:
                with suppress(psutil.Error):
                    self._cpu_s[worker_id] = _cpu_s_of(psutil.Process(pid))
                if row["state"] == "spare":
                    self._begun.add(worker_id)

    def _measure_servers(self, *, is_training: bool) -> None:
        """Note what Keepers' servers of forks have taken; those there at the beginning are none."""
        for pid in self.keeper_pids.values():
            with suppress(psutil.Error):
                for server in find_servers(pid):
                    if not is_training:
                        self._first_servers.add(server)
                    elif server not in self._first_servers:
                        self._server_cpu_s[server] = _cpu_s_of(server)


def _node_ids(workers: Sequence[dict[str, Any]]) -> set[str]:
    return {row["node_id"] for row in workers} - {None}


def _cpu_s_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
