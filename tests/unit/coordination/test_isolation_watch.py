"""A node that fails again and again takes no ranks until it has shown to be well."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe
from trainflow.coordination.isolation_watch import IsolationWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes


class Scene:
    """Bundles on the nodes a1 and b1, of the machines a and b; two failures isolate."""

    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.placed = {0: "a1", 1: "b1"}
        pool: Any = FakePool()
        pool.bundle_nodes = lambda: self.placed
        self.pool = pool
        nodes: Any = SimpleNamespace(unfit=UnfitNodes(), host_of=lambda node: node[0])
        nodes.alive = {"a1": "a", "b1": "b"}
        self.quiet: list[str] = []
        nodes.quiet_nodes = lambda: self.quiet
        self.nodes = nodes
        self.watch = self.open()

    def open(self) -> IsolationWatch:
        job = make_job(failures={"isolate_after": 2, "probe_after_s": 10.0})
        return IsolationWatch(job, self.pool, self.nodes, self.record, self.clock)

    def fail(self, node_id: str, times: int = 1) -> None:
        for _ in range(times):
            number = len(self.record.events_since(0))
            self.record.add_event("failure", "lost", worker=f"w{number}", host=node_id[0])
            self.watch.on_failure(node_id)

    def pass_time(self, duration_s: float) -> None:
        self.clock.now_s += duration_s
        self.watch.tick()

    @property
    def isolated(self) -> set[str]:
        return set(self.nodes.unfit.isolated)

    def kinds(self) -> list[str]:
        kinds = [event["kind"] for event in self.record.events_since(0)]
        return [kind for kind in kinds if kind != "failure"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_it_is_isolated_and_taken_back_once_its_probe_is_warm(scene: Scene):
    scene.fail("b1")
    assert scene.isolated == set()
    scene.fail("b1")
    assert scene.isolated == {"b1"}
    assert not scene.watch.may_start("b1")
    scene.watch.on_ready("b1")
    assert scene.isolated == {"b1"}, "it had begun before"
    scene.pass_time(10.0)
    assert scene.watch.may_start("b1")
    assert not scene.watch.may_start("b1"), "one is enough"
    scene.watch.on_ready("b1")
    assert scene.isolated == set()
    assert scene.kinds() == ["isolate", "readmit"]


def test_a_probe_that_is_lost_makes_the_pause_longer(scene: Scene):
    scene.fail("b1", 3)
    scene.pass_time(10.0)
    assert scene.watch.may_start("b1")
    scene.fail("b1")
    scene.pass_time(19.0)
    assert not scene.watch.may_start("b1")
    scene.pass_time(1.0)
    assert scene.watch.may_start("b1")
    assert scene.kinds() == ["isolate", "isolate"]
    assert scene.record.events_since(0)[-1]["text"] == (
        "node b takes no more ranks: a worker there is lost again; it is tried in 20 s"
    )


def test_a_machine_that_is_back_as_another_node_is_the_same(scene: Scene):
    scene.placed, scene.nodes.alive = {0: "a1"}, {"a1": "a"}
    scene.fail("b1", 2)
    assert scene.isolated == set(), "there is no such node"
    scene.nodes.alive = {"a1": "a", "b2": "b"}
    scene.pass_time(0.5)
    assert scene.isolated == {"b2"}
    scene.pass_time(10.0)
    assert scene.watch.may_start("b2")


def test_nothing_is_tried_on_a_node_that_is_gone(scene: Scene):
    scene.fail("b1", 2)
    scene.quiet = ["b1"]
    scene.pass_time(10.0)
    assert not scene.watch.may_start("b1"), "Ray has not found yet that it is gone"
    scene.nodes.alive = {"a1": "a"}
    scene.pass_time(0.5)
    scene.quiet = []
    assert not scene.watch.may_start("b1"), "its bundle is said to be there still"
    scene.nodes.alive = {"a1": "a", "b2": "b"}
    scene.pass_time(0.5)
    assert scene.watch.may_start("b2")
    assert scene.kinds() == ["isolate"]


def test_the_last_one_stays(scene: Scene):
    scene.fail("b1", 2)
    scene.fail("a1", 5)
    assert scene.isolated == {"b1"}


def test_a_node_that_is_to_go_is_nobodys_alternative(scene: Scene):
    scene.nodes.unfit.draining["a1"] = 5.0
    scene.fail("b1", 2)
    assert scene.isolated == set()


def test_where_no_bundle_is_free_for_a_probe_one_that_has_lived_on_will_do(scene: Scene):
    worker = FakeWorker("slot1-1.1", None)
    scene.pool.entries |= FakePool([worker]).entries
    scene.pool.entries["slot1-1.1"].description = replace(describe("slot1-1.1"), host="b")
    scene.fail("b1", 2)
    scene.pass_time(14.0)
    assert scene.isolated == {"b1"}, "a bundle may be found"
    scene.pass_time(1.0)
    assert scene.isolated == set()


def test_a_new_coordinator_keeps_to_it(scene: Scene):
    scene.fail("b1", 2)
    scene.watch = scene.open()
    scene.nodes.unfit.isolated = frozenset()
    scene.pass_time(9.0)
    assert scene.isolated == {"b1"}
    assert not scene.watch.may_start("b1")
    scene.pass_time(1.0)
    assert scene.watch.may_start("b1")
    scene.watch.on_ready("b1")
    scene.watch = scene.open()
    scene.watch.tick()
    scene.fail("b1")
    assert scene.isolated == set(), "what was before it was taken back counts no more"


def test_a_failure_of_which_no_node_is_known_is_nobodys(scene: Scene):
    for _ in range(3):
        scene.watch.on_failure(None)
    assert scene.isolated == set()


def test_ray_is_asked_nothing_where_none_is_to_be_isolated(scene: Scene):
    scene.pool.bundle_nodes = lambda: 1 / 0
    IsolationWatch(make_job(), scene.pool, scene.nodes, scene.record, scene.clock).on_failure("b1")


def test_a_node_that_goes_while_a_worker_is_tried_there_is_tried_again(scene: Scene):
    scene.fail("b1", 2)
    scene.pass_time(10.0)
    assert scene.watch.may_start("b1")
    scene.pass_time(1.0)
    assert scene.kinds() == ["isolate"]
    scene.placed, scene.nodes.alive = {0: "a1"}, {"a1": "a"}
    scene.watch.on_failure(None)  # its bundle was gone with it
    for _ in range(2):
        scene.pass_time(1.0)
    assert scene.kinds() == ["isolate", "isolate"]
    assert "it was gone before a worker that was tried" in scene.record.events_since(0)[-1]["text"]
    scene.placed, scene.nodes.alive = {0: "a1", 1: "b2"}, {"a1": "a", "b2": "b"}
    scene.pass_time(18.0)
    assert not scene.watch.may_start("b2"), "the pause is twice as long"
    scene.pass_time(1.0)
    assert scene.watch.may_start("b2")
    scene.watch.on_ready("b2")
    assert scene.isolated == set()
