"""Where faults fall: a run, its processes on this machine, and the nodes that the campaign started.

Process: driver.  Thread: main.  Blocks: never for the run; for a local signal or file.
"""

import heapq
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psutil

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.chaos.holds import Hold, Holds
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.chaos.record_disk import RecordDisk
from trainflow.coordination.chaos.run_view import RunView
from trainflow.coordination.chaos.schedule import PlannedFault, choose_worker
from trainflow.coordination.chaos.store_proxy import StoreProxy
from trainflow.coordination.local_cluster import START_WITHIN_S, LocalCluster
from trainflow.coordination.local_node import LocalNode
from trainflow.errors import ConfigError

_Done = TypeVar("_Done")


@dataclass(frozen=True)
class Victim:
    """A process that a fault falls on.

    Attributes:
        process: it; where a fault falls on no process of the run, this one.
        name: what it is, for a person.
        worker: the member or spare that it was found by, if it was by one.
    """

    process: psutil.Process
    name: str
    worker: dict[str, Any]


@dataclass(frozen=True)
class OwnCluster:
    """The cluster that a campaign has started.

    Attributes:
        cluster: it.
        node_cpus: that each node declares.
        proxy: before the store of checkpoints, if a fault is to hang that.
        disk: with the runs' records, if a fault is to fill it.
        hosts: that its nodes are on, if a fault is to cut them off.
    """

    cluster: LocalCluster
    node_cpus: float
    proxy: StoreProxy | None = None
    disk: RecordDisk | None = None
    hosts: NetHosts | None = None


@dataclass(frozen=True)
class _Coming:
    """A node that is to take the place of a dropped one; begun_at_s: when, by CLOCK_MONOTONIC."""

    node: LocalNode
    begun_at_s: float


@dataclass
class Scene:
    """What faults are done with.

    Attributes:
        job_id: names the run.
        view: what is known of it.
        folder: where orders to its ranks go.
        clock: tells when what is due.
        own: None where the run is on a cluster of somebody else.
        holds: what faults have in their hands that last.
        undone: what could not be done, by the fault's number; None: at the end, for all of them.
        unfelt: numbers of faults that were done, and that nobody has come upon while they lasted.
    """

    job_id: str
    view: RunView
    folder: Path
    clock: Clock
    own: OwnCluster | None
    holds: Holds = field(default_factory=Holds)
    undone: dict[int | None, str] = field(default_factory=dict[int | None, str])
    unfelt: set[int] = field(default_factory=set[int])
    _later: list[tuple[float, int, int, Callable[[], None]]] = field(default_factory=list)
    _for_good: set[int] = field(default_factory=set[int])
    _felt: dict[int, Callable[[], bool]] = field(default_factory=dict[int, Callable[[], bool]])
    _killed: set[psutil.Process] = field(default_factory=set[psutil.Process])
    _coming: dict[int, _Coming] = field(default_factory=dict[int, _Coming])
    _serial: "count[int]" = field(default_factory=count)
    _stopped: dict[int, tuple[int, psutil.Process]] = field(
        default_factory=dict[int, tuple[int, psutil.Process]]
    )

    def find(self, planned: PlannedFault) -> Victim | None:
        """Return whom a fault falls on at this moment; None if nobody is there."""
        if planned.fault.target == "coordinator":
            return self._open(self.view.coordinator_pid, "the coordinator", {})
        worker = choose_worker(planned, self.view.workers)
        if worker is None:
            return None
        row = dict(worker)
        if planned.fault.target == "keeper":
            pid = self.view.keeper_pids.get(row["node_id"])
            return self._open(pid, f"the Keeper of {row['host']}", row)
        who = "a spare" if row["rank"] is None else f"rank {row['rank']}"
        return self._open(row["pid"], f"{who} ({row['worker_id']})", row)

    def _open(self, pid: int | None, name: str, worker: dict[str, Any]) -> Victim | None:
        if pid is None:
            return None
        with suppress(psutil.NoSuchProcess):
            process = self.view.traces.find(pid) or psutil.Process(pid)
            # A pid that was told a while ago may be somebody else's by now.
            is_there = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            if is_there and process not in self._killed:
                return Victim(process, f"{name}, pid {pid}", worker)
        return None

    def attempt(self, number: int | None, do: Callable[[], _Done]) -> _Done | None:
        """Do something of a fault; None if it can't be done, of which the first is noted."""
        try:
            return do()
        except (psutil.Error, OSError, ConfigError) as error:
            reason = f"could not be done: {type(error).__name__}: {error}"
            self.undone.setdefault(number, reason)
            return None

    def after(self, number: int, delay_s: float, action: Callable[[], None]) -> None:
        """Have something of a fault done later, by `act`."""
        at_s = self.clock.monotonic_s() + delay_s
        heapq.heappush(self._later, (at_s, next(self._serial), number, action))

    def expect(self, number: int, is_felt: Callable[[], bool]) -> None:
        """Have it told at the end of a fault, by `settle`, whether anybody has come upon it."""
        self._felt[number] = is_felt

    def settle(self, number: int) -> None:
        """A fault is over: note it, if nobody has come upon it."""
        is_felt = self._felt.pop(number, None)
        if is_felt is not None and self.attempt(number, is_felt) is False:
            self.unfelt.add(number)

    def act(self) -> None:
        """Do what is due."""
        while self._later and self._later[0][0] <= self.clock.monotonic_s():
            _, _, number, action = heapq.heappop(self._later)
            self.attempt(number, action)

    def kill(self, process: psutil.Process) -> None:
        """Kill a process, which may be seen for a moment yet; nothing else falls on it."""
        process.kill()
        self._killed.add(process)

    def stop(self, number: int, process: psutil.Process, *, for_good: bool = False) -> Hold:
        """Have a process stand still, for a fault, until `resume`.

        Args:
            number: the fault's.
            process: it.
            for_good: nobody has it go on: the run is to end it.

        Raises:
            psutil.NoSuchProcess: it has just ended.
        """
        process.suspend()
        self._stopped[process.pid] = (number, process)
        if for_good:
            self._for_good.add(process.pid)
        return self.holds.begin(process)

    def resume(self, process: psutil.Process, hold: Hold) -> None:
        """Have a process go on, if it is still there and no other fault has it stand still."""
        if not self.holds.end(hold):
            self._resume(process)

    def _resume(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()
        self._stopped.pop(process.pid, None)

    def release_all(self) -> None:
        """Undo what lasts, but for processes that the run is to end; nothing more is due."""
        self._later.clear()
        for number in list(self._felt):
            self.settle(number)
        self._tell_not_there()
        self.holds.clear()
        if self.own is not None and self.own.proxy is not None:
            self.attempt(None, self.own.proxy.let_go)
        if self.own is not None and self.own.disk is not None:
            self.attempt(None, self.own.disk.empty)
        if self.own is not None and self.own.hosts is not None:
            hosts = self.own.hosts
            self.attempt(None, lambda: hosts.shape(None))
        for number, process in list(self._stopped.values()):
            if process.pid not in self._for_good:
                self.attempt(number, partial(self._resume, process))

    def release_stopped(self) -> None:
        """Have every process go on that still is there: it was seen whether the run ended it."""
        for number, process in list(self._stopped.values()):
            self.attempt(number, partial(self._resume, process))

    def drop_node(self, worker: dict[str, Any]) -> LocalNode | None:
        """Kill every process of a worker's node, with its memory; None if there is no such node."""
        assert self.own is not None, "a plan with this fault is refused without a cluster of ours"
        nodes = (each for each in self.own.cluster.nodes if each.host == worker["host"])
        node = next(nodes, None)
        if node is not None and node.process.poll() is None:
            self.view.traces.excuse(process.pid for process in node.tree())
            node.kill()
            self._coming = {n: each for n, each in self._coming.items() if each.node is not node}
            # A real node's memory would be gone with it.
            shutil.rmtree(names.stamp_directory(self.job_id, worker["node_id"]), ignore_errors=True)
            return node
        return None

    def bring_back(self, number: int, node: LocalNode) -> None:
        """Start another node in the place of one that a fault dropped; it joins when it joins."""
        assert self.own is not None, "only a node of ours is dropped"
        another = self.own.cluster.begin_replacing(node, self.own.node_cpus)
        self._coming[number] = _Coming(another, self.clock.monotonic_s())

    def _tell_not_there(self) -> None:
        """Note which nodes have not come back though they should have."""
        for number, coming in self._coming.items():
            is_late = self.clock.monotonic_s() - coming.begun_at_s > START_WITHIN_S
            why = self.attempt(number, lambda coming=coming: coming.node.find_unstarted())
            if why and (is_late or not coming.node.is_alive):
                told = f"no node has come in the place of the one that was dropped: {why}"
                self.undone.setdefault(number, told)
