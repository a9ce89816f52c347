"""The kinds of faults: each knows how to fall on a run, and what is to be done about it later.

Two that last may overlap: what ends is a fault's own part (`holds`).

Process: driver.  Thread: main.  Blocks: never for the run.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psutil

from trainflow.computation.chaos_orders import Order, give_order
from trainflow.computation.skewed_clock import read_followed, skew_clock
from trainflow.config.chaos_plan import FaultKind
from trainflow.coordination.chaos.holds import Hold
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.chaos.scene import Scene, Victim
from trainflow.coordination.chaos.schedule import PlannedFault

_SLOW_PERIOD_S = 0.2


class Fault(Protocol):
    """One kind."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Do it now; return on whom it fell, or None if nobody is there."""
        ...


class _OnProcess:
    """A fault of one process."""

    def __init__(self, do: Callable[[PlannedFault, Victim, Scene], None]):
        self._do = do

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        victim = scene.find(planned)
        if victim is None:
            return None
        with suppress(psutil.NoSuchProcess):
            self._do(planned, victim, scene)
            return victim
        return None


def _kill(_planned: PlannedFault, victim: Victim, scene: Scene) -> None:
    scene.kill(victim.process)


def _stop(planned: PlannedFault, victim: Victim, scene: Scene) -> None:
    resume_after_s = planned.fault.resume_after_s
    hold = scene.stop(planned.number, victim.process, for_good=resume_after_s is None)
    if resume_after_s is not None:
        scene.after(planned.number, resume_after_s, lambda: scene.resume(victim.process, hold))


class Slow:
    """A process that runs for a share of the time only: stopped and continued by turns."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Begin; ends by itself."""
        victim = scene.find(planned)
        if victim is None:
            return None
        ends_at_s = scene.clock.monotonic_s() + planned.fault.last_s
        runs_s = planned.fault.speed * _SLOW_PERIOD_S

        def stand() -> None:
            hold = scene.stop(planned.number, victim.process)
            scene.after(planned.number, _SLOW_PERIOD_S - runs_s, lambda: go(hold))

        def go(hold: Hold) -> None:
            scene.resume(victim.process, hold)
            scene.after(planned.number, runs_s, stand_again)

        def stand_again() -> None:
            if scene.clock.monotonic_s() < ends_at_s and victim.process.is_running():
                with suppress(psutil.NoSuchProcess):
                    stand()

        try:
            stand()
        except psutil.NoSuchProcess:
            return None
        return victim


class Partition:
    """What a node sends, or what it is sent, or both, goes nowhere."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Begin; ends by itself."""
        assert scene.own is not None, "a plan with this fault is refused without a cluster of ours"
        hosts = scene.own.hosts
        assert hosts is not None, "there are some where a plan has this fault"
        victim = scene.find(planned)
        if victim is None:
            return None
        address, loses = victim.worker["host"], planned.fault.loses
        host = hosts.number_of(address)
        lost = ("sent", "received") if loses == "both" else (loses,)
        hold = scene.holds.begin(("link", host), lost)

        def mend() -> None:
            others = scene.holds.end(hold)
            hosts.shape(None, host)
            _cut(hosts, host, others)

        scene.after(planned.number, planned.fault.last_s, mend)  # first: also what is half done
        _cut(hosts, host, [lost])
        return replace(victim, name=f"the network of {address} of {victim.name}")


def _cut(hosts: NetHosts, host: int, losses: Sequence[Collection[str]]) -> None:
    """Have a host's link lose what any of the faults has it lose; what it loses already it does."""
    lost = frozenset[str]().union(*losses)
    if lost:
        hosts.cut(host, sends="sent" not in lost, hears="received" not in lost)


class DropNode:
    """Every process of a node at once, and what the node has in memory."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Kill it; another one takes its place later, if the plan says so."""
        victim = scene.find(planned)
        node = None if victim is None else scene.drop_node(victim.worker)
        if victim is None or node is None:
            return None
        if planned.fault.back_after_s is not None:
            after_s = planned.fault.back_after_s
            scene.after(planned.number, after_s, lambda: scene.bring_back(planned.number, node))
        return replace(victim, name=f"the node {node.host} of {victim.name}")


class Flip:
    """A bit of what one rank has summed, in the next step that it begins with others."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Order it of the rank, if there is another to compare its sums with."""
        victim = scene.find(planned)
        members = [row for row in scene.view.workers if row["state"] == "member"]
        if victim is None or len(members) == 1:
            return None
        rank = victim.worker["rank"]
        order = Order(planned.number, "flip", rank, step=None, phase=None, pick=planned.pick)
        give_order(scene.folder, order)
        return victim


class HangStore:
    """The store of checkpoints takes connections, and nothing passes."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Begin; ends by itself."""
        assert scene.own is not None, "a plan with this fault is refused without a cluster of ours"
        proxy = scene.own.proxy
        assert proxy is not None, "there is one where a plan has this fault"
        hold = scene.holds.begin("store")
        num_before = proxy.num_held

        def let_go() -> None:
            scene.settle(planned.number)
            if not scene.holds.end(hold):
                proxy.let_go()

        scene.after(planned.number, planned.fault.last_s, let_go)
        proxy.hold()
        scene.expect(planned.number, lambda: proxy.num_held > num_before or proxy.num_waiting > 0)
        return Victim(psutil.Process(), "the store", {})


class FillDisk:
    """There is no room where the run's record is."""

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        """Begin; ends by itself."""
        assert scene.own is not None, "a plan with this fault is refused without a cluster of ours"
        disk = scene.own.disk
        assert disk is not None, "there is one where a plan has this fault"
        hold = scene.holds.begin("disk")

        def empty() -> None:
            if not scene.holds.end(hold):
                disk.empty()

        scene.after(planned.number, planned.fault.last_s, empty)
        disk.fill()
        return Victim(psutil.Process(), "the disk with the run's record", {})


def _skew_clock(planned: PlannedFault, victim: Victim, scene: Scene) -> None:
    pid, fault = victim.process.pid, planned.fault
    hold = scene.holds.begin(("clock", pid), fault.skew_s)
    num_before = len(read_followed(scene.folder, pid))

    def is_felt() -> bool:
        """Whether it has been as wrong since, or was from a fault before on."""
        return fault.skew_s in read_followed(scene.folder, pid)[max(0, num_before - 1) :]

    def set_right() -> None:
        scene.settle(planned.number)
        skews_s = scene.holds.end(hold)
        skew_clock(scene.folder, pid, skews_s[-1] if skews_s else 0.0)

    scene.after(planned.number, fault.last_s, set_right)
    skew_clock(scene.folder, pid, fault.skew_s)
    scene.expect(planned.number, is_felt)


FAULTS: dict[FaultKind, Fault] = {
    "kill": _OnProcess(_kill),
    "stop": _OnProcess(_stop),
    "slow": Slow(),
    "partition": Partition(),
    "drop_node": DropNode(),
    "flip": Flip(),
    "hang_store": HangStore(),
    "fill_disk": FillDisk(),
    "skew_clock": _OnProcess(_skew_clock),
}


def order_of(planned: PlannedFault) -> Order:
    """Return the order by which a process does a fault to itself, at the place of the plan."""
    fault = planned.fault
    assert planned.is_ordered, "else it falls from outside"
    assert fault.rank is not None or fault.target == "keeper", "the plan requires one"
    assert fault.kind in ("kill", "stop", "flip"), "the plan allows no others"
    return Order(
        planned.number, fault.kind, fault.rank, planned.at_step, planned.phase, planned.pick
    )
