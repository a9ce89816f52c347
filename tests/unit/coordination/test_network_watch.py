"""What a run tells of slow links."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe, settle
from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.computation.reports import StepReport
from trainflow.coordination.background import Background
from trainflow.coordination.messages import Holding
from trainflow.coordination.network_detection import BEGIN_AFTER, END_AFTER
from trainflow.coordination.network_watch import NetworkWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.step_window import WINDOW_STEPS
from trainflow.epochs import EpochId, PeerAddress

STEP_S = 0.5
COMPUTED_S = 0.1
WIRE_BYTES = 10_000_000
FAST, SLOW = LinkSpeed(200e6, 0.0004), LinkSpeed(20e6, 0.08)


class Nodes:
    """Keepers whose links a test makes up."""

    def __init__(self) -> None:
        self.node_ids = ["a", "b", "c"]
        self.slow: set[str] = set()
        self.silent: set[str] = set()
        self.rounds: list[dict[str, str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask_holdings(self, timeout_s: float) -> list[Holding]:
        ids = [each for each in [*self.node_ids, "head"] if each not in self.silent]
        return [Holding(each, PeerAddress(each, 1, ""), None) for each in ids]

    async def probe_links(
        self, targets: dict[str, PeerAddress], timeout_s: float
    ) -> dict[str, LinkSpeed]:
        await self.may_answer.wait()
        self.rounds.append({one: target.host for one, target in targets.items()})
        return {
            one: SLOW if self.slow & {one, target.host} else FAST for one, target in targets.items()
        }


class Run:
    """Ranks on nodes of their own, whose steps a test makes up."""

    def __init__(self, directory: Path):
        self.nodes: Any = Nodes()
        self.record = RunRecord(directory, FakeClock())
        self.clock = FakeClock()
        self.errors: list[str] = []
        self.num_steps = 0
        self.form("a", "b", "c")
        self.watch = self.open()

    def open(self) -> NetworkWatch:
        background = Background(self.errors.append)
        watched = self.pool, self.control, self.nodes, self.record, background, self.clock
        return NetworkWatch(*watched)

    def form(self, *node_ids: str) -> None:
        """Begin an epoch whose ranks are on these nodes."""
        ids = [f"slot{i}-1.{i}" for i in range(len(node_ids))]
        pool = FakePool([FakeWorker(each, None) for each in ids])
        for each, node_id in zip(ids, node_ids, strict=True):
            on_node = replace(describe(each), node_id=node_id, host=f"10.0.0.{node_id}")
            pool.entries[each].description = on_node
        if self.num_steps:
            self.pool.entries.clear()
            self.pool.entries.update(pool.entries)
            self.control.epoch = EpochId(1, self.control.epoch.counter + 1)
            self.control.members = tuple(ids)
        else:
            self.pool: Any = pool
            self.control: Any = SimpleNamespace(members=tuple(ids), epoch=EpochId(1, 1))

    def step(self, waited_s: float, **others: Any) -> None:
        self.num_steps += 1
        values: dict[str, Any] = {
            "step": self.num_steps,
            "rank": 0,
            "epoch": self.control.epoch,
            "committed_at_s": self.num_steps * STEP_S,
            "compute_by_rank": (COMPUTED_S,) * len(self.control.members),
            "shortest_wait_s": waited_s,
            "wire_bytes": WIRE_BYTES,
            "world_size": len(self.control.members),
            "applied": True,
            **dict.fromkeys(("loss", "grad_norm", "lr", "weight", "compute_s", "wait_s"), 1.0),
        }
        self.watch.on_step(StepReport(**values | others))

    async def windows(self, number: int, waited_s: float, **others: Any) -> None:
        for _ in range(number * WINDOW_STEPS):
            self.step(waited_s, **others)
            await settle()

    async def begin(self) -> None:
        """Train for some windows in which all is well."""
        self.step(0.05)
        await self.windows(BEGIN_AFTER, 0.05)

    def events(self) -> list[dict[str, Any]]:
        return self.record.events_since(0)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]


Act = Callable[[Run], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Act], None]:
    """Return what runs a test in a loop, once all has been well for some windows."""

    def play(act: Act) -> None:
        async def run() -> None:
            run = Run(tmp_path)
            await run.begin()
            assert run.events() == []
            await act(run)
            assert run.errors == [], "a detector that fails ends the run"

        asyncio.run(run())

    return play


def test_the_node_whose_link_is_slow_is_named_with_what_it_costs(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        (event,) = run.events()
        assert event["kind"] == "slow_network"
        assert event["text"] == (
            "the link of 10.0.0.c has 20.0 MB/s and 80.00 ms, where others have 200.0 MB/s and "
            "0.40 ms: training waits 0.500 s a step for it, as communication takes 0.550 s where "
            "0.050 s would do"
        )
        (link,) = event["data"]["links"]
        assert (link["node_ids"], link["hosts"], link["ranks"]) == (["c"], ["10.0.0.c"], [2])
        assert link["speed"] == {"bytes_per_s": 20e6, "round_trip_s": 0.08}
        assert link["others"] == {"bytes_per_s": 200e6, "round_trip_s": 0.0004}
        assert run.watch.current() == [link]
        met = [frozenset(pair) for each in run.nodes.rounds for pair in each.items()]
        assert set(met) == {frozenset(pair) for pair in ("ab", "ac", "bc")}
        assert len(met) == 3, "each link is measured once, by itself"

    play(act)


def test_nothing_is_probed_while_communication_takes_what_it_did(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(10, 0.1)
        assert run.nodes.rounds == []
        assert run.events() == []

    play(act)


def test_of_several_nodes_two_that_answer_tell_nothing_of_each_other(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow, run.nodes.silent = {"b"}, {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        assert [set(each.items()) for each in run.nodes.rounds] == [{("a", "b")}]
        assert run.events() == []
        run.nodes.silent = set()
        run.clock.now_s += 60.0
        await run.windows(1, 0.55)
        assert run.events()[-1]["data"]["links"][0]["node_ids"] == ["b"]

    play(act)


def test_its_end_is_told(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        await run.windows(END_AFTER, 0.05)
        event = run.events()[-1]
        assert (event["kind"], event["data"]) == ("slow_network_over", {"cause": "usual"})
        assert run.watch.current() == []

    play(act)


@pytest.mark.parametrize(
    ("node_ids", "cause"),
    [("abd", "left"), ("abcd", "other_layout"), ("aa", "left")],
    ids=["another node has its rank", "nothing is known of such a world", "all are on one node"],
)
def test_another_world_ends_what_was_told_of_the_one_before(
    play: Callable[[Act], None], node_ids: str, cause: str
):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        run.form(*node_ids)
        run.step(0.55)
        event = run.events()[-1]
        assert (event["kind"], event["data"]) == ("slow_network_over", {"cause": cause})
        assert run.watch.current() == []

    play(act)


def test_a_world_of_the_same_layout_keeps_what_was_told(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        run.form("c", "b", "d")
        await run.windows(2 * BEGIN_AFTER, 0.55)
        assert run.kinds() == ["slow_network"]

    play(act)


def test_of_two_nodes_the_link_between_them_is_named(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.form("a", "b")
        run.nodes.slow = {"b"}
        await run.begin()
        await run.windows(BEGIN_AFTER, 0.55)
        (event,) = run.events()
        assert event["text"].startswith(
            "the link between 10.0.0.a and 10.0.0.b has 20.0 MB/s and 80.00 ms: training waits"
        )
        assert event["data"]["links"][0]["ranks"] == [0, 1]

    play(act)


def test_of_two_nodes_a_link_that_is_fast_is_not_named(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.form("a", "b")
        await run.begin()
        await run.windows(BEGIN_AFTER, 0.55)
        assert run.nodes.rounds
        assert run.events() == []

    play(act)


def test_who_is_not_to_blame_is_not_named_and_links_are_probed_again_later(
    play: Callable[[Act], None],
):
    async def act(run: Run) -> None:
        await run.windows(2 * BEGIN_AFTER, 0.55)
        assert run.events() == []
        num_rounds = len(run.nodes.rounds)
        assert num_rounds == 3, "once, and not with each step"
        run.nodes.slow = {"c"}
        run.clock.now_s += 31.0
        await run.windows(1, 0.55)
        assert run.kinds() == ["slow_network"]
        assert len(run.nodes.rounds) == 2 * num_rounds

    play(act)


def test_links_are_probed_less_and_less_often_while_none_is_slow(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        await run.windows(BEGIN_AFTER, 0.55)
        for _ in range(300):
            run.clock.now_s += 10.0
            run.step(0.55)
            await settle()
        at_s = [0, 30, 90, 210, 450, 930, 1530, 2130, 2730]
        assert len(run.nodes.rounds) == 3 * len(at_s)

    play(act)


def test_a_link_that_moves_what_is_sent_in_no_time_is_not_the_cause(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55, wire_bytes=1000)
        assert run.nodes.rounds
        assert run.events() == []

    play(act)


def test_what_has_changed_while_it_was_probed_is_judged_anew(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        run.nodes.may_answer.clear()
        await run.windows(BEGIN_AFTER, 0.55)
        run.form("a", "c", "b")
        run.nodes.may_answer.set()
        await settle()
        assert run.nodes.rounds
        assert run.events() == []

    play(act)


def test_a_node_that_does_not_answer_is_left_out(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.form("a", "b", "c", "d")
        run.nodes.node_ids.append("d")
        run.nodes.slow, run.nodes.silent = {"c"}, {"d"}
        await run.begin()
        await run.windows(BEGIN_AFTER, 0.55)
        (event,) = run.events()
        assert event["data"]["links"][0]["node_ids"] == ["c"]

    play(act)


def test_a_new_coordinator_goes_on_from_what_was_told(play: Callable[[Act], None]):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(BEGIN_AFTER, 0.55)
        told = run.watch.current()
        run.record = RunRecord(run.record.directory, FakeClock())
        run.watch = run.open()
        assert run.watch.current() == told
        await run.windows(2 * BEGIN_AFTER, 0.55)
        assert run.kinds() == ["slow_network"]
        await run.windows(1 + END_AFTER, 0.05)
        assert run.kinds() == ["slow_network", "slow_network_over"]
        assert run.open().current() == []

    play(act)


@pytest.mark.parametrize(
    "others",
    [{"rank": 1}, {"epoch": EpochId(1, 0)}, {"step": 1}, {"compute_by_rank": (0.1, 0.1)}],
    ids=["another rank's", "of an epoch that is past", "repeated", "of another world"],
)
def test_reports_that_tell_nothing_new_count_for_nothing(
    play: Callable[[Act], None], others: dict[str, Any]
):
    async def act(run: Run) -> None:
        run.nodes.slow = {"c"}
        await run.windows(2 * BEGIN_AFTER, 0.55, **others)
        assert run.nodes.rounds == []

    play(act)
