"""Faults fall on real processes, and are over when the plan says so."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import OrderBook
from trainflow.config.chaos_plan import ChaosPlan, FaultKind
from trainflow.coordination.chaos.faults import FAULTS, order_of
from trainflow.coordination.chaos.run_view import RunView
from trainflow.coordination.chaos.scene import OwnCluster, Scene
from trainflow.coordination.chaos.schedule import PlannedFault, draw_faults
from trainflow.errors import ConfigError

DEADLINE_S = 20.0


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def scene(process: subprocess.Popen[bytes], clock: FakeClock, tmp_path: Path) -> Scene:
    no_run: Any = None
    view = RunView(no_run, clock)
    row = {"worker_id": "slot1-1.1", "rank": 1, "state": "member", "host": "127.0.0.2"}
    view.workers = [row | {"pid": process.pid, "node_id": "n"}]
    view.coordinator_pid = process.pid
    view.keeper_pids = {"n": process.pid}
    return Scene("tiny-abcdef", view, tmp_path, clock, own=None)


def own_cluster(**parts: Any) -> OwnCluster:
    """Return a campaign's cluster of which only these parts are there."""
    no_cluster: Any = None
    return OwnCluster(no_cluster, 1.0, **parts)


def planned(**fault: Any) -> PlannedFault:
    (drawn,) = draw_faults(ChaosPlan.model_validate({"schedule": [{"at_s": 1} | fault]}))
    return drawn


def wait_status(process: subprocess.Popen[bytes], *wanted: str) -> None:
    seen, deadline_s = psutil.Process(process.pid), SYSTEM_CLOCK.monotonic_s() + DEADLINE_S
    while seen.status() not in wanted:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, seen.status()
        SYSTEM_CLOCK.sleep(0.01)


RUNS = (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("member", "rank 1 (slot1-1.1), pid"),
        ("keeper", "the Keeper of 127.0.0.2, pid"),
        ("coordinator", "the coordinator, pid"),
    ],
)
def test_a_process_is_killed(
    scene: Scene, process: subprocess.Popen[bytes], target: str, name: str
):
    victim = FAULTS["kill"].fall(planned(kind="kill", target=target), scene)
    assert victim is not None
    assert victim.name.startswith(name)
    assert process.wait(DEADLINE_S) == -signal.SIGKILL


def test_nobody_is_hit_where_nobody_is(scene: Scene, process: subprocess.Popen[bytes]):
    assert FAULTS["kill"].fall(planned(kind="kill", target="spare"), scene) is None
    assert FAULTS["kill"].fall(planned(kind="kill", rank=0), scene) is None
    assert process.poll() is None


def test_a_dead_process_is_not_hit_again(scene: Scene, process: subprocess.Popen[bytes]):
    process.kill()
    process.wait()
    kinds: tuple[FaultKind, ...] = ("kill", "stop", "slow", "flip")
    for kind in kinds:
        assert FAULTS[kind].fall(planned(kind=kind), scene) is None


def test_who_was_killed_is_not_hit_again_while_it_dies(
    scene: Scene, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(psutil.Process, "kill", lambda _: None)  # it takes a moment
    assert FAULTS["kill"].fall(planned(kind="kill"), scene) is not None
    assert FAULTS["kill"].fall(planned(kind="kill"), scene) is None
    assert process.poll() is None


def test_who_has_the_pid_of_a_dead_process_by_now_is_not_hit(
    scene: Scene, process: subprocess.Popen[bytes]
):
    """A Keeper's pid is asked for every few seconds, and not told while it is started again."""
    scene.view.traces.note([process.pid])
    noted = scene.view.traces.find(process.pid)
    assert noted is not None
    noted._ident = (process.pid, 0.0)  # it was another that had it
    for target in ("keeper", "coordinator", "member"):
        assert FAULTS["kill"].fall(planned(kind="kill", target=target), scene) is None
    assert process.poll() is None


def test_a_stopped_process_goes_on_when_the_plan_says_so(
    scene: Scene, process: subprocess.Popen[bytes], clock: FakeClock
):
    FAULTS["stop"].fall(planned(kind="stop", resume_after_s=3), scene)
    wait_status(process, psutil.STATUS_STOPPED)
    clock.now_s = 2.9
    scene.act()
    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    clock.now_s = 3.0
    scene.act()
    wait_status(process, *RUNS)


def test_what_is_stopped_goes_on_when_the_run_is_over(
    scene: Scene, process: subprocess.Popen[bytes]
):
    FAULTS["stop"].fall(planned(kind="stop", resume_after_s=60), scene)
    wait_status(process, psutil.STATUS_STOPPED)
    scene.release_all()
    wait_status(process, *RUNS)


def test_what_is_stopped_for_good_goes_on_when_it_was_seen_what_is_left(
    scene: Scene, process: subprocess.Popen[bytes]
):
    FAULTS["stop"].fall(planned(kind="stop"), scene)
    scene.release_all()
    wait_status(process, psutil.STATUS_STOPPED)
    scene.release_stopped()
    wait_status(process, *RUNS)


def test_a_slow_process_runs_by_turns_until_its_time_is_over(
    scene: Scene, process: subprocess.Popen[bytes], clock: FakeClock
):
    FAULTS["slow"].fall(planned(kind="slow", speed=0.25, last_s=1), scene)
    ran_s = 0.0
    while clock.now_s < 1.0:
        ran_s += 0 if process.pid in scene._stopped else 0.01
        clock.sleep(0.01)
        scene.act()
    assert ran_s == pytest.approx(0.25, abs=0.06)
    clock.sleep(1.0)
    scene.act()
    scene.act()
    wait_status(process, *RUNS)


def test_a_process_stands_still_as_long_as_any_fault_has_it_do_so(
    scene: Scene, process: subprocess.Popen[bytes], clock: FakeClock
):
    FAULTS["slow"].fall(planned(kind="slow", speed=0.5, last_s=2), scene)
    FAULTS["stop"].fall(planned(kind="stop", resume_after_s=5), scene)
    FAULTS["stop"].fall(planned(kind="stop", resume_after_s=8), scene)
    wait_status(process, psutil.STATUS_STOPPED)
    while clock.now_s < 7.9:
        clock.sleep(0.05)
        scene.act()
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, clock.now_s
    clock.now_s = 8.0
    scene.act()
    wait_status(process, *RUNS)


def test_a_flip_is_ordered_of_the_rank(scene: Scene, tmp_path: Path):
    scene.view.workers.append(scene.view.workers[0] | {"rank": 0})
    victim = FAULTS["flip"].fall(planned(kind="flip", rank=1), scene)
    assert victim is not None
    book = OrderBook(tmp_path)
    book.look()
    (order,) = book.orders
    assert (order.kind, order.rank, order.step, order.phase) == ("flip", 1, None, None)


def test_a_flip_falls_on_nobody_whose_sums_nobody_else_has(scene: Scene, tmp_path: Path):
    scene.view.workers.append(scene.view.workers[0] | {"rank": None, "state": "spare"})
    assert FAULTS["flip"].fall(planned(kind="flip"), scene) is None
    book = OrderBook(tmp_path)
    book.look()
    assert book.orders == []


class FakeHosts:
    def __init__(self) -> None:
        self.cuts: list[tuple[int, bool, bool]] = []
        self.mended: list[tuple[int, ...]] = []

    def number_of(self, address: str) -> int:
        return int(address.rpartition(".")[2])

    def cut(self, host: int, *, sends: bool, hears: bool) -> None:
        self.cuts.append((host, sends, hears))

    def shape(self, rate: None, *hosts: int) -> None:
        self.mended.append(hosts)


@pytest.mark.parametrize(
    ("loses", "cut"),
    [("both", (2, False, False)), ("sent", (2, False, True)), ("received", (2, True, False))],
)
def test_a_node_is_cut_off_until_the_plan_mends_it(
    scene: Scene, clock: FakeClock, loses: str, cut: tuple[int, bool, bool]
):
    hosts = FakeHosts()
    scene.own = own_cluster(hosts=hosts)
    fault = planned(kind="partition", loses=loses, last_s=3)
    victim = FAULTS["partition"].fall(fault, scene)
    assert victim is not None
    assert victim.name.startswith("the network of 127.0.0.2 of rank 1 (slot1-1.1), pid")
    assert hosts.cuts == [cut]
    clock.now_s = 2.9
    scene.act()
    assert hosts.mended == []
    clock.now_s = 3.0
    scene.act()
    assert hosts.mended == [(2,)]
    scene.release_all()
    assert hosts.mended[-1] == (), "all are mended when the run is over"


def test_a_link_that_two_cut_is_mended_once_both_are_over(scene: Scene, clock: FakeClock):
    hosts = FakeHosts()
    scene.own = own_cluster(hosts=hosts)
    FAULTS["partition"].fall(planned(kind="partition", loses="both", last_s=3), scene)
    FAULTS["partition"].fall(planned(kind="partition", loses="sent", last_s=4), scene)
    hosts.cuts.clear()
    clock.now_s = 3.0
    scene.act()
    assert (hosts.mended, hosts.cuts) == ([(2,)], [(2, False, True)]), "what is left of it"
    clock.now_s = 4.0
    scene.act()
    assert (hosts.mended, hosts.cuts) == ([(2,), (2,)], [(2, False, True)])


class FakeStore:
    """A store or disk that is out of order, or isn't."""

    def __init__(self) -> None:
        self.is_out = False
        self.num_held = self.num_waiting = 0
        self.hold = self.fill = lambda: setattr(self, "is_out", True)
        self.let_go = self.empty = lambda: setattr(self, "is_out", False)


@pytest.mark.parametrize("kind", ["hang_store", "fill_disk"])
def test_a_store_is_out_of_order_until_the_last_fault_is_over(
    scene: Scene, clock: FakeClock, kind: FaultKind
):
    out = FakeStore()
    scene.own = own_cluster(proxy=out, disk=out)
    FAULTS[kind].fall(planned(kind=kind, last_s=3), scene)
    clock.now_s = 2.0
    FAULTS[kind].fall(planned(kind=kind, last_s=3), scene)
    for now_s, is_out in [(3.0, True), (5.0, False)]:
        clock.now_s = now_s
        scene.act()
        assert out.is_out is is_out


def hang_store(number: int, last_s: float, scene: Scene) -> None:
    fault = replace(planned(kind="hang_store", last_s=last_s), number=number)
    assert FAULTS["hang_store"].fall(fault, scene)


def test_a_store_that_nobody_has_asked_meanwhile_has_shown_nothing(scene: Scene, clock: FakeClock):
    out = FakeStore()
    scene.own = own_cluster(proxy=out)
    hang_store(7, 3, scene)
    clock.now_s = 3.0
    scene.act()
    hang_store(8, 3, scene)
    out.num_held += 1
    clock.now_s = 6.0
    scene.act()
    hang_store(9, 3, scene)
    scene.release_all()
    assert scene.unfelt == {7, 9}


def test_who_waits_for_a_store_since_a_fault_before_waits_for_this_one_too(
    scene: Scene, clock: FakeClock
):
    out = FakeStore()
    scene.own = own_cluster(proxy=out)
    hang_store(7, 3, scene)
    out.num_held = out.num_waiting = 1
    hang_store(8, 5, scene)
    clock.now_s = 5.0
    scene.act()
    assert scene.unfelt == set()


@pytest.mark.parametrize(
    ("before", "since", "unfelt"),
    [
        ("", "60.0\n", set[int]()),
        ("", "", {1}),
        ("", "61.0\n", {1}),
        ("60.0\n", "", set[int]()),
        ("60.0\n0.0\n", "", {1}),
    ],
    ids=["it was", "not read", "another one's", "it was before", "it was and is not"],
)
def test_a_clock_that_its_process_has_not_looked_at_was_not_wrong(
    scene: Scene, process: subprocess.Popen[bytes], before: str, since: str, unfelt: set[int]
):
    followed = scene.folder / f"clock-{process.pid}.followed"
    followed.write_text(before)
    FAULTS["skew_clock"].fall(planned(kind="skew_clock", skew_s=60, last_s=3), scene)
    followed.write_text(before + since)
    scene.release_all()
    assert scene.unfelt == unfelt


def test_who_ends_right_before_it_is_stopped_was_not_hit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    def end(process: psutil.Process) -> None:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "suspend", end)
    kinds: tuple[FaultKind, ...] = ("stop", "slow")
    for kind in kinds:
        assert FAULTS[kind].fall(planned(kind=kind), scene) is None


class FakeNode:
    """A node that has come up, or not yet, or has ended."""

    host = "127.0.0.2"

    def __init__(self, *, is_alive: bool = True, printed: str = ""):
        self.is_alive = is_alive
        self.process = SimpleNamespace(poll=lambda: None)
        self.find_unstarted = lambda: printed
        self.kill = lambda: None
        self.tree = list[psutil.Process]


@pytest.mark.parametrize(
    ("node", "after_s", "told"),
    [
        (FakeNode(), 100.0, None),
        (FakeNode(printed="Starting"), 1.0, None),
        (FakeNode(printed="Starting"), 100.0, "Starting"),
        (FakeNode(is_alive=False, printed="no port"), 1.0, "no port"),
    ],
    ids=["it is there", "it comes", "it is late", "it has ended"],
)
def test_a_node_that_does_not_come_back_is_told_of(
    scene: Scene, clock: FakeClock, node: FakeNode, after_s: float, told: str | None
):
    dropped = FakeNode()
    cluster = SimpleNamespace(nodes=[dropped], begin_replacing=lambda *_: node)
    no_cluster: Any = cluster
    scene.own = OwnCluster(no_cluster, 1.0)
    assert FAULTS["drop_node"].fall(planned(kind="drop_node", back_after_s=2), scene)
    clock.now_s = 2.0
    scene.act()
    clock.now_s += after_s
    cluster.nodes = [node]
    scene.release_all()
    text = f"no node has come in the place of the one that was dropped: {told}"
    assert scene.undone == ({} if told is None else {1: text})
    scene.undone.clear()
    assert FAULTS["drop_node"].fall(planned(kind="drop_node", back_after_s=None), scene)
    scene.release_all()
    assert scene.undone == {}, "another fault has dropped it since"


def test_a_clock_is_as_wrong_as_the_newest_fault_has_it(
    scene: Scene, process: subprocess.Popen[bytes], clock: FakeClock
):
    for skew_s, last_s in [(60, 3), (-90, 2)]:
        FAULTS["skew_clock"].fall(planned(kind="skew_clock", skew_s=skew_s, last_s=last_s), scene)
    said = scene.folder / f"clock-{process.pid}"
    for now_s, skew_s in [(0.0, -90.0), (2.0, 60.0), (3.0, 0.0)]:
        clock.now_s = now_s
        scene.act()
        assert float(said.read_text()) == skew_s


@pytest.mark.parametrize("target", ["member", "keeper", "coordinator"])
def test_a_clock_is_wrong_and_right_again(
    scene: Scene, process: subprocess.Popen[bytes], clock: FakeClock, target: str
):
    fault = planned(kind="skew_clock", target=target, skew_s=-90, last_s=2)
    assert FAULTS["skew_clock"].fall(fault, scene) is not None
    said = scene.folder / f"clock-{process.pid}"
    assert float(said.read_text()) == -90.0
    clock.now_s = 2.0
    scene.act()
    assert float(said.read_text()) == 0.0


def test_a_fault_at_a_phase_becomes_an_order():
    order = order_of(planned(kind="kill", rank=2, at_s=None, at_step=7, phase="optimizer"))
    assert (order.kind, order.rank, order.step, order.phase) == ("kill", 2, 7, "optimizer")


def test_what_a_keeper_is_to_do_is_ordered_of_no_rank():
    fault = planned(kind="kill", target="keeper", at_s=None, at_step=7, phase="restoring")
    order = order_of(fault)
    assert (order.rank, order.step, order.phase) == (None, 7, "restoring")
    assert fault.what == "kill keeper in restoring"


def _refuse(process: psutil.Process) -> None:
    raise psutil.AccessDenied(process.pid)


def test_what_may_not_be_stopped_is_held_by_no_fault(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    fault = planned(kind="stop", resume_after_s=1)
    monkeypatch.setattr(psutil.Process, "suspend", _refuse)
    with pytest.raises(psutil.AccessDenied):
        FAULTS["stop"].fall(fault, scene)
    assert not scene.holds._of


def test_what_may_not_be_ended_is_noted_with_its_fault_and_tried_again_at_the_end(
    scene: Scene,
    process: subprocess.Popen[bytes],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
):
    assert FAULTS["stop"].fall(planned(kind="stop", resume_after_s=1), scene)
    wait_status(process, psutil.STATUS_STOPPED)
    clock.now_s = 1.0
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "resume", _refuse)
        scene.act()
    assert scene.undone[1].startswith("could not be done: AccessDenied: ")
    assert str(process.pid) in scene.undone[1]
    scene.release_all()
    wait_status(process, *RUNS)


class BrokenHosts(FakeHosts):
    """Its links can't be mended."""

    def shape(self, *_: Any) -> None:
        raise ConfigError("tc is not there")


def test_processes_go_on_at_the_end_though_something_else_can_not_be_ended(
    scene: Scene, process: subprocess.Popen[bytes]
):
    scene.own = own_cluster(hosts=BrokenHosts())
    FAULTS["stop"].fall(planned(kind="stop", resume_after_s=60), scene)
    wait_status(process, psutil.STATUS_STOPPED)
    scene.release_all()
    wait_status(process, *RUNS)
    assert scene.undone == {None: "could not be done: ConfigError: tc is not there"}


class BrokenDisk(FakeStore):
    def __init__(self) -> None:
        super().__init__()
        self.fill = self._fill

    def _fill(self) -> None:
        self.is_out = True
        raise OSError("no more")


def test_what_was_half_done_is_ended_in_its_time(scene: Scene, clock: FakeClock):
    out = BrokenDisk()
    scene.own = own_cluster(disk=out)
    with pytest.raises(OSError, match="no more"):
        FAULTS["fill_disk"].fall(planned(kind="fill_disk", last_s=3), scene)
    clock.now_s = 3.0
    scene.act()
    assert not out.is_out
