"""Nodes that can't reach each other: told, one of them empty, and taken back once it is over."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe
from trainflow.coordination.cut_watch import CutWatch
from trainflow.coordination.forming_attempts import FormingAttempts
from trainflow.coordination.messages import Holding
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import PeerAddress

MEMBERS = ("slot0-1.0", "slot1-1.1", "slot2-1.2")
NODE_OF = {"slot0-1.0": "a", "slot1-1.1": "b", "slot2-1.2": "c", "slot3-1.3": "d"}


class Scene:
    """A rank on each of three nodes, and a spare on a fourth."""

    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.unfit = UnfitNodes()
        self.node_ids = set("abcd")
        self.silent: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.num_asked = self.num_advanced = 0
        self.pool: Any = FakePool([FakeWorker(each, None) for each in NODE_OF])
        for worker_id, node_id in NODE_OF.items():
            self.pool.entries[worker_id].description = replace(describe(worker_id), node_id=node_id)
        self.watch = self.open()

    def open(self) -> CutWatch:
        self.left_for_s: dict[str, float] = {}
        self.attempts = FormingAttempts()
        self.lost: list[tuple[list[str], str]] = []
        control = SimpleNamespace(
            advance=self.advance,
            left_for_s=lambda: self.left_for_s,
            attempts=self.attempts,
            superior=self,
        )
        parts: Any = (self.pool, self, control, self.record)
        return CutWatch(make_job(world=3, minimum=2), *parts, self.clock)

    def advance(self) -> None:
        self.num_advanced += 1

    def lose(self, worker_ids: list[str], cause: str) -> None:
        self.lost.append((worker_ids, cause))
        self.left_for_s = {}

    def host_of(self, node_id: str) -> str:
        return f"10.0.0.{node_id}"

    async def ask_holdings(self, timeout_s: float) -> list[Holding]:
        there = sorted(self.node_ids - self.silent)
        return [Holding(each, PeerAddress(each, 1, ""), None) for each in there]

    async def ask_unreachable(
        self, addresses: Mapping[str, PeerAddress], timeout_s: float
    ) -> dict[str, list[str]]:
        self.num_asked += 1
        return {one: [b for b in addresses if (one, b) in self.cut] for one in addresses}

    def find(self) -> tuple[list[str], str] | None:
        self.left_for_s = dict.fromkeys(MEMBERS, 5.0)
        found = asyncio.run(self.watch.find_cut_off(MEMBERS))
        self.left_for_s = {}
        return found

    def tick(self, after_s: float = 0.0) -> None:
        self.clock.now_s += after_s
        asyncio.run(self.watch.tick())

    def events(self) -> list[dict[str, Any]]:
        return self.record.events_since(0)

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.events()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nodes_that_reach_each_other_lose_nobody(scene: Scene):
    assert scene.find() is None
    assert scene.events() == []


def test_one_of_two_that_do_not_gives_its_rank_up_and_both_are_named(scene: Scene):
    scene.cut = {("b", "c")}
    assert scene.find() == (
        ["slot2-1.2"],
        "nodes 10.0.0.b and 10.0.0.c can't reach each other",
    )
    (event,) = scene.events()
    assert event["kind"] == "link_cut"
    assert event["text"] == (
        "nodes 10.0.0.b and 10.0.0.c can't reach each other, while both reach the head: 10.0.0.c "
        "gives ranks 2 up, and takes none until they do"
    )
    assert event["data"] == {
        "nodes": ["b", "c"],
        "hosts": ["10.0.0.b", "10.0.0.c"],
        "leaving": ["c"],
        "ranks": [2],
    }
    assert scene.unfit.all() == {"c"}
    assert "c" in scene.unfit


def test_one_look_is_not_enough(scene: Scene):
    ask = scene.ask_unreachable

    async def ask_once(*asked: Any) -> dict[str, list[str]]:
        answers = await ask(*asked)
        scene.cut = set()
        return answers

    scene.cut = {("b", "c")}
    scene.watch._nodes.ask_unreachable = ask_once
    assert scene.find() is None


def test_a_node_that_does_not_answer_is_not_called_cut_off(scene: Scene):
    scene.cut = {("b", "c")}
    scene.silent = {"c"}
    assert scene.find() is None
    assert scene.unfit.all() == frozenset()


def test_where_too_few_would_be_left_nobody_goes_and_it_is_told_once(scene: Scene):
    scene.cut = {("a", "b"), ("b", "c"), ("a", "c")}
    del scene.pool.entries["slot3-1.3"]
    for _ in range(3):
        assert scene.find() is None
    assert scene.kinds() == ["link_cut"] * 3, "once for each pair"
    assert "neither can go, as workers.minimum = 2" in scene.events()[0]["text"]
    assert scene.unfit.all() == frozenset()


def test_once_there_are_others_one_goes_after_all(scene: Scene):
    spare = scene.pool.entries.pop("slot3-1.3")
    scene.cut = {("a", "b"), ("b", "c"), ("a", "c")}
    assert scene.find() is None
    scene.pool.entries["slot3-1.3"] = spare
    found = scene.find()
    assert found is not None
    assert found[0] == ["slot1-1.1", "slot2-1.2"]


def test_a_cut_that_is_mended_is_forgotten_and_the_node_taken_back(scene: Scene):
    scene.cut = {("b", "c")}
    scene.find()
    asked = scene.num_asked
    scene.tick(after_s=4.0)
    assert scene.num_asked == asked, "it is not looked all the time"
    scene.tick(after_s=1.0)
    assert scene.kinds() == ["link_cut"]
    assert scene.unfit.all() == {"c"}
    scene.cut = set()
    scene.tick(after_s=5.0)
    assert scene.kinds() == ["link_cut", "link_cut_over"]
    assert scene.events()[1]["data"]["cause"] == "mended"
    assert scene.unfit.all() == frozenset()
    assert scene.num_advanced == 1
    asked = scene.num_asked
    scene.tick(after_s=1000.0)
    assert scene.num_asked == asked, "there is nothing to look after"


def test_a_node_that_does_not_answer_is_not_taken_back(scene: Scene):
    scene.cut = {("b", "c")}
    scene.find()
    scene.cut, scene.silent = set(), {"c"}
    scene.tick(after_s=5.0)
    assert scene.unfit.all() == {"c"}


def test_one_cut_that_lasts_says_nothing_of_another_whose_nodes_do_not_answer(scene: Scene):
    scene.cut = {("a", "b"), ("b", "c")}
    scene.find()
    scene.cut, scene.silent = {("a", "b")}, {"c"}
    scene.tick(after_s=5.0)
    assert "link_cut_over" not in scene.kinds()
    scene.silent = set()
    scene.tick(after_s=5.0)
    (over,) = [each["data"]["nodes"] for each in scene.events() if each["kind"] == "link_cut_over"]
    assert over == ["b", "c"]
    assert scene.unfit.all() == {"b"}, "it is still cut from the other"


def test_with_a_node_that_is_gone_its_cuts_are_over(scene: Scene):
    scene.cut = {("b", "c")}
    scene.find()
    scene.node_ids.remove("b")
    scene.tick(after_s=5.0)
    assert scene.events()[1]["data"]["cause"] == "left"
    assert scene.unfit.all() == frozenset()


def test_a_link_that_comes_and_goes_is_tried_ever_later(scene: Scene):
    pauses_s: list[float] = []
    for _ in range(9):
        scene.cut = {("b", "c")}
        scene.find()
        scene.cut = set()
        pauses_s.append(0.0)
        while scene.unfit.all():
            pauses_s[-1] += 5.0
            scene.tick(after_s=5.0)
    assert pauses_s == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_a_cut_that_lasts_is_looked_at_once_in_each_pause(scene: Scene):
    scene.cut = {("b", "c")}
    scene.find()
    scene.num_asked = 0
    asked: list[int] = []
    for after_s in (4.9, 0.1, 0.5, 4.4, 0.1):
        scene.tick(after_s=after_s)
        asked.append(scene.num_asked)
    assert asked == [0, 1, 1, 1, 2]


def test_another_coordinator_knows_how_often_two_nodes_have_lost_each_other(scene: Scene):
    for _ in range(2):
        scene.cut = {("b", "c")}
        scene.find()
        scene.cut = set()
        scene.tick(after_s=20.0)
    scene.record = RunRecord(scene.record.directory, scene.clock)
    scene.watch = scene.open()
    scene.cut = {("b", "c")}
    scene.find()
    scene.cut = set()
    scene.tick(after_s=19.9)
    assert scene.unfit.all() == {"c"}
    scene.tick(after_s=0.1)
    assert scene.unfit.all() == frozenset()


def test_another_coordinator_goes_on_from_what_was_told(scene: Scene):
    scene.cut = {("b", "c")}
    scene.find()
    scene.unfit.cut_off = frozenset()
    scene.record = RunRecord(scene.record.directory, scene.clock)
    scene.watch = scene.open()
    assert scene.unfit.all() == {"c"}
    scene.cut = set()
    scene.tick()
    assert scene.kinds() == ["link_cut", "link_cut_over"]
    scene.watch = scene.open()
    assert scene.unfit.all() == frozenset()


def test_members_that_wait_for_their_next_epoch_for_long_are_looked_at(scene: Scene):
    scene.cut = {("b", "c")}
    scene.tick()
    assert scene.num_asked == 0, "none is formed"
    scene.left_for_s = dict.fromkeys(MEMBERS, 4.9)
    scene.tick()
    assert scene.num_asked == 0, "it may take a moment"
    scene.left_for_s = dict.fromkeys(MEMBERS, 5.0)
    scene.tick()
    assert [worker_ids for worker_ids, _ in scene.lost] == [["slot2-1.2"]]


def test_members_that_fail_to_connect_again_and_again_are_looked_at_at_once(scene: Scene):
    """As where they are refused: nobody waits then."""
    scene.cut = {("b", "c")}
    scene.left_for_s = dict.fromkeys(MEMBERS, 0.4)
    for _ in range(2):
        scene.attempts.fail(scene.clock.now_s)
    scene.tick()
    assert scene.num_asked == 0, "it may be a death"
    scene.attempts.fail(scene.clock.now_s)
    left_for_s, scene.left_for_s = scene.left_for_s, {}
    scene.tick()
    assert scene.num_asked == 0, "nobody waits any more"
    scene.left_for_s = left_for_s
    scene.tick()
    assert [worker_ids for worker_ids, _ in scene.lost] == [["slot2-1.2"]]


def test_they_are_looked_at_again_and_again_while_none_is_cut_off(scene: Scene):
    scene.left_for_s = dict.fromkeys(MEMBERS, 20.0)
    for _ in range(3):
        scene.tick()
    assert scene.num_asked == 1
    scene.cut = {("b", "c")}
    scene.tick(after_s=5.0)
    assert len(scene.lost) == 1


def test_nobody_is_lost_for_an_epoch_that_others_are_to_form_by_now(scene: Scene):
    scene.left_for_s = dict.fromkeys(MEMBERS, 20.0)
    scene.cut = {("b", "c")}
    ask = scene.ask_unreachable

    async def ask_late(*asked: Any) -> dict[str, list[str]]:
        scene.left_for_s = {}  # it is formed meanwhile, or one of them has died
        return await ask(*asked)

    scene.watch._nodes.ask_unreachable = ask_late
    scene.tick()
    assert scene.lost == []
    assert scene.events() == [], "nothing is told of ranks that stay where they are"
    assert scene.unfit.all() == frozenset()
