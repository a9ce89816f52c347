"""What goes wrong in the detection benchmark, and who tells of it.

Process: the harness, as root. It sends signals, shapes links, and writes orders for ranks.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detection_orders import DATA_STALLS, HANGS, MISCALCULATES, give, read_time
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import Order, give_order, read_claim
from trainflow.coordination.chaos.net_hosts import NetHosts

RATE, TENTH = "1gbit", "100mbit"
NOTICE = "notice-{host}"
_SLICE_S = 0.03
_KEEPER = b"ray::Keeper"


@dataclass(frozen=True)
class Victim:
    """Whom a fault falls on.

    Attributes:
        rank: of the member.
        pid: of its process.
        host: number of its host.
        hosts: all hosts.
        names: by one of which an event names it.
    """

    rank: int
    pid: int
    host: int
    hosts: NetHosts
    names: tuple[str, ...]


Fell = Callable[[], float | None]
"""Tells when a fault fell, by CLOCK_REALTIME; None: it hasn't yet."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: of the fault.
        told_by: kinds of events that tell of it.
        falls: lets it fall on a member, until the context is left.
        is_lost: whether the member's rank goes to another.
        over: the event that tells that it is over; None: none does.
        is_named: whether its event has the member's worker or host; else its rank, or nobody.
    """

    name: str
    told_by: tuple[str, ...]
    falls: Callable[[Victim], AbstractContextManager[Fell]]
    is_lost: bool = True
    over: str | None = None
    is_named: bool = True

    def tells(self, event: dict[str, Any], victim: Victim) -> bool:
        """Whether an event tells of the fault that fell on a victim."""
        if event["kind"] not in self.told_by:
            return False
        return not self.is_named or any(name in str(event) for name in victim.names)


def _now() -> Fell:
    at_s = SYSTEM_CLOCK.unix_s()
    return lambda: at_s


def signalled(sent: signal.Signals) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Send the process a signal."""

    @contextmanager
    def falls(victim: Victim) -> Generator[Fell]:
        fell = _now()
        os.kill(victim.pid, sent)
        yield fell

    return falls


@contextmanager
def keeper_stopped(victim: Victim) -> Generator[Fell]:
    """Stop the Keeper of the host."""
    fell = _now()
    os.kill(find_keeper(victim), signal.SIGSTOP)
    yield fell


@contextmanager
def slowed(victim: Victim) -> Generator[Fell]:
    """Let the process run half of the time."""
    done = threading.Event()

    def take_turns() -> None:
        while not done.wait(_SLICE_S):
            os.kill(victim.pid, signal.SIGSTOP)
            done.wait(_SLICE_S)
            os.kill(victim.pid, signal.SIGCONT)

    thread = threading.Thread(target=take_turns, daemon=True)
    fell = _now()
    thread.start()
    try:
        yield fell
    finally:
        done.set()
        thread.join()


@contextmanager
def link_slowed(victim: Victim) -> Generator[Fell]:
    """Let the host's link pass a tenth of what it did."""
    fell = _now()
    victim.hosts.shape(TENTH, victim.host)
    try:
        yield fell
    finally:
        victim.hosts.shape(RATE, victim.host)


def cut(*, sends: bool, hears: bool) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Cut the host off, in one direction or in both."""

    @contextmanager
    def falls(victim: Victim) -> Generator[Fell]:
        fell = _now()
        victim.hosts.cut(victim.host, sends=sends, hears=hears)
        try:
            yield fell
        finally:
            victim.hosts.shape(RATE, victim.host)

    return falls


@contextmanager
def cut_from_others(victim: Victim) -> Generator[Fell]:
    """Cut the host off from all but the head."""
    others = [other for other in range(1, victim.hosts.count) if other != victim.host]
    fell = _now()
    for other in others:
        victim.hosts.cut_between(victim.host, other)
    try:
        yield fell
    finally:
        for other in others:
            victim.hosts.mend_between(victim.host, other)


def under_notice(work_dir: Path) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Give notice that the host's machine is to be taken back, and take that back."""

    @contextmanager
    def falls(victim: Victim) -> Generator[Fell]:
        notice = work_dir / NOTICE.replace("{host}", victim.hosts.address(victim.host))
        fell = _now()
        notice.write_text("600")
        try:
            yield fell
        finally:
            notice.unlink()

    return falls


def ordered(orders_dir: Path, what: str) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Have the rank do something to itself."""

    @contextmanager
    def falls(victim: Victim) -> Generator[Fell]:
        done = give(orders_dir, what, victim.rank)
        yield lambda: read_time(done)

    return falls


def data_held_back(orders_dir: Path) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Have no data come to any rank."""

    @contextmanager
    def falls(_victim: Victim) -> Generator[Fell]:
        fell = _now()
        (orders_dir / DATA_STALLS).touch()
        try:
            yield fell
        finally:
            (orders_dir / DATA_STALLS).unlink()

    return falls


def flipped(campaign: Path) -> Callable[[Victim], AbstractContextManager[Fell]]:
    """Flip a bit of the gradients that the rank has summed."""

    @contextmanager
    def falls(victim: Victim) -> Generator[Fell]:
        (run,) = campaign.iterdir()
        number = len(list(run.glob("done-*")))
        give_order(run, Order(number, "flip", victim.rank, step=None, phase=None, pick=0.5))

        def fell() -> float | None:
            made = read_claim(run, number)
            return None if made is None else made.at_s

        yield fell

    return falls


def find_keeper(victim: Victim) -> int:
    """Return the pid of the Keeper that runs on the victim's host."""
    with victim.hosts.entered(victim.host):
        host = Path("/proc/thread-self/ns/net").stat().st_ino
    found = [each for each in Path("/proc").glob("[0-9]*") if _is_keeper(each, host)]
    assert len(found) == 1, f"one run has one Keeper a host: {found}"
    return int(found[0].name)


def _is_keeper(process: Path, network: int) -> bool:
    try:
        is_keeper = (process / "cmdline").read_bytes().startswith(_KEEPER)
        return is_keeper and (process / "ns/net").stat().st_ino == network
    except OSError:
        return False  # it has ended meanwhile


KILLED = Fault("killed", ("failure",), signalled(signal.SIGKILL))


def list_faults(work_dir: Path, orders_dir: Path, campaign: Path) -> tuple[Fault, ...]:
    """Return all of them; the folders are those of notices, of orders, and of a campaign's."""
    notice = under_notice(work_dir)
    wrong = ordered(orders_dir, MISCALCULATES)
    stalls = data_held_back(orders_dir)
    hangs = ordered(orders_dir, HANGS)
    return (
        KILLED,
        Fault("stopped", ("hang", "failure"), signalled(signal.SIGSTOP)),
        Fault("hangs", ("hang",), hangs),
        Fault("cut_off", ("failure",), cut(sends=False, hears=False)),
        Fault("deaf", ("failure",), cut(sends=True, hears=False)),
        Fault("mute", ("failure",), cut(sends=False, hears=True)),
        Fault("cut_from_others", ("link_cut",), cut_from_others),
        Fault("keeper_stopped", ("keeper_away",), keeper_stopped, False, over="keeper_back"),
        Fault("flipped", ("ranks_differ",), flipped(campaign), False),
        Fault("miscalculates", ("ranks_differ",), wrong),
        Fault("data_stalls", ("data_stall",), stalls, False, "data_stall_over", is_named=False),
        Fault("slow_rank", ("straggler",), slowed, False, "straggler_over"),
        Fault("slow_link", ("slow_network",), link_slowed, False, "slow_network_over"),
        Fault("notice", ("drain",), notice, False, "drain_over"),
    )
