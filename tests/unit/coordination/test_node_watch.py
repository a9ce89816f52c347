"""The coordinator's Keepers, without Ray."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, settle
from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.coordination import node_watch
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper_deaths import BACK_WITHIN_S, KeeperDeaths
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.ray_drains import LivingNode
from trainflow.coordination.stack_dumps import StackDump
from trainflow.coordination.wakefulness import BEAT_EVERY_S
from trainflow.epochs import EpochId, PeerAddress, Phase

TIMEOUT_S = 5.0


def nothing(*_: object, **__: object) -> None:
    pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the Keepers that are made; they do nothing."""
    made: list[str] = []

    async def done() -> None:
        return None

    def make(*, name: str, **_: Any) -> Any:
        made.append(name)
        ignore = SimpleNamespace(remote=nothing)
        keeper = SimpleNamespace(introduce=ignore, clean_up=SimpleNamespace(remote=done))
        keeper.wait_exit = SimpleNamespace(remote=asyncio.Event().wait)

        def begin(*_: object) -> Any:
            return keeper

        return SimpleNamespace(remote=begin)

    monkeypatch.setattr(node_watch, "KeeperActor", SimpleNamespace(options=make))
    monkeypatch.setattr(node_watch, "NodeAffinitySchedulingStrategy", nothing)
    monkeypatch.setattr("ray.kill", nothing)
    monkeypatch.setattr("ray.put", lambda value: value)
    return made


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("error", "expected"),
    [(ActorUnavailableError("it is being restarted", None), 3), (ActorDiedError(), 1)],
    ids=["is back soon", "was ended"],
)
def test_a_keeper_that_was_killed_just_before_the_end_cleans_up_once_it_is_back(
    error: RayError, expected: int
):
    num_asked = 0

    async def answer() -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked < 3:
            raise error

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        await nodes.ensure({"a"})
        nodes._keepers["a"].clean_up.remote = answer
        await nodes.close(5.0)

    asyncio.run(act())
    assert num_asked == expected


def test_what_is_still_under_way_when_the_run_ends_makes_no_keeper(made: list[str]):
    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        await nodes.ensure({"a"})
        closing = asyncio.create_task(nodes.close(1.0))
        await asyncio.sleep(0)
        await nodes.ensure({"b"})
        await closing
        await nodes.ensure({"c"})
        assert nodes.node_ids == set()

    asyncio.run(act())
    assert len(made) == 1


class SilentHead:
    """Ray makes Keepers once it may answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.may_answer = threading.Event()
        self.cleaned: list[str] = []
        monkeypatch.setattr(NodeWatch, "_make_keeper", self._make_keeper)

    def _make_keeper(self, node_id: str) -> Any:
        assert self.may_answer.wait(TIMEOUT_S)
        ignore = SimpleNamespace(remote=nothing)
        keeper = SimpleNamespace(introduce=ignore)
        keeper.wait_exit = SimpleNamespace(remote=asyncio.Event().wait)

        async def clean_up() -> None:
            self.cleaned.append(node_id)

        keeper.clean_up = SimpleNamespace(remote=clean_up)
        return keeper


async def ask_for_one() -> tuple[NodeWatch, asyncio.Future[None]]:
    """Ask for the Keeper of a node, up to where Ray is asked for it."""
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    asking = asyncio.ensure_future(nodes.ensure({"a"}))
    await settle()
    return nodes, asking


@pytest.mark.usefixtures("made")
def test_the_event_loop_goes_on_while_ray_does_not_make_a_keeper(
    monkeypatch: pytest.MonkeyPatch,
):
    head = SilentHead(monkeypatch)

    async def act() -> None:
        nodes, asking = await ask_for_one()
        assert not asking.done()
        nodes.hear("a", {}, knows_peers=False)
        head.may_answer.set()
        await asking
        assert nodes.node_ids == {"a"}
        await nodes.close(TIMEOUT_S)

    asyncio.run(act())


@pytest.mark.usefixtures("made")
def test_who_asks_for_the_same_keeper_meanwhile_gets_that(monkeypatch: pytest.MonkeyPatch):
    head = SilentHead(monkeypatch)
    followed: list[str] = []
    monkeypatch.setattr(KeeperDeaths, "follow", lambda _, node_id, __: followed.append(node_id))

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        asking = [asyncio.ensure_future(nodes.ensure(each)) for each in ({"a"}, {"a", "b"})]
        await settle()
        head.may_answer.set()
        await asyncio.gather(*asking)
        assert nodes.node_ids == {"a", "b"}

    asyncio.run(act())
    assert followed == ["a", "b"]


@pytest.mark.usefixtures("made")
def test_a_keeper_that_is_being_made_as_the_run_ends_is_cleaned_up_too(
    monkeypatch: pytest.MonkeyPatch,
):
    head = SilentHead(monkeypatch)

    async def act() -> None:
        nodes, asking = await ask_for_one()
        asking.cancel()
        closing = asyncio.ensure_future(nodes.close(TIMEOUT_S))
        await settle()
        head.may_answer.set()
        await closing
        assert head.cleaned == ["a"]

    asyncio.run(act())


@pytest.mark.usefixtures("made")
def test_the_end_does_not_wait_for_ever_for_one_that_ray_does_not_make(
    monkeypatch: pytest.MonkeyPatch,
):
    head = SilentHead(monkeypatch)

    async def act() -> None:
        nodes, asking = await ask_for_one()
        await nodes.close(0.01)
        head.may_answer.set()
        await asking

    asyncio.run(act())
    assert head.cleaned == []


@pytest.mark.usefixtures("made")
def test_every_keeper_that_lives_is_waited_for_until_it_is_heard_again():
    clock = FakeClock()

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), clock)
        await nodes.ensure({"a", "b", "dies"})
        waiting = asyncio.create_task(nodes.wait_heard())
        await asyncio.sleep(0)
        clock.now_s += 0.1
        nodes.hear("a", {}, knows_peers=True)
        del nodes._keepers["dies"]
        _, late = await asyncio.wait({waiting}, timeout=0.2)
        assert late, "b has not been heard"
        nodes.hear("b", {}, knows_peers=True)
        _, late = await asyncio.wait({waiting}, timeout=0.2)
        assert late, "these may have been on their way before"
        clock.now_s += 1.0
        for each in "ab":
            nodes.hear(each, {}, knows_peers=True)
        await asyncio.wait_for(waiting, 5.0)

    asyncio.run(act())


def pass_time(nodes: NodeWatch, clock: FakeClock, for_s: float) -> None:
    """Let time pass while the coordinator's event loop runs."""
    for _ in range(round(for_s / BEAT_EVERY_S)):
        clock.now_s += BEAT_EVERY_S
        nodes.awake.beat(clock.now_s)


@pytest.mark.usefixtures("made")
def test_a_keeper_that_starts_slowly_is_not_taken_for_one_that_has_fallen_silent():
    clock = FakeClock()

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), clock)
        await nodes.ensure({"heard", "slow", "found"}, {"found"})
        nodes.hear("heard", {}, knows_peers=True)
        pass_time(nodes, clock, 11.5)  # failures.lease_s and a second are 11
        assert set(nodes.silent_nodes()) == {"heard", "found"}
        nodes.hear("heard", {}, knows_peers=True)
        nodes.hear("found", {}, knows_peers=True)
        assert nodes.silent_nodes() == []
        pass_time(nodes, clock, 10.9)
        nodes.hear("slow", {}, knows_peers=True)
        pass_time(nodes, clock, 10.9)
        assert "slow" not in nodes.silent_nodes()
        pass_time(nodes, clock, 0.2)
        assert "slow" in nodes.silent_nodes(), "from here on it is as any other"
        await nodes.ensure({"never"})
        pass_time(nodes, clock, 120.5)
        assert "never" in nodes.silent_nodes()

    asyncio.run(act())


@pytest.mark.usefixtures("made")
def test_a_keeper_that_has_died_alone_has_time_to_be_started_again():
    clock = FakeClock()

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), clock)
        await nodes.ensure({"a", "b", "gone"}, {"a", "b", "gone"})
        died = asyncio.Event()

        async def fail() -> None:
            await died.wait()
            raise ActorUnavailableError("it is being restarted", None)

        for each in ("a", "gone"):
            nodes._keepers[each].wait_exit.remote = fail
            nodes._deaths.forget(each)
            nodes._deaths.follow(each, nodes._keepers[each])
        nodes.note_alive({"a": LivingNode("10.0.0.1"), "b": LivingNode("10.0.0.2")})
        await asyncio.sleep(0)
        died.set()
        await asyncio.sleep(0.01)
        pass_time(nodes, clock, 11.5)  # failures.lease_s and a second are 11
        assert set(nodes.silent_nodes()) == {"b", "gone"}
        assert nodes.unattended_nodes() == ["a"]
        pass_time(nodes, clock, BACK_WITHIN_S)
        assert nodes.unattended_nodes() == []
        assert "a" in nodes.silent_nodes(), "not for ever"
        nodes.hear("a", {}, knows_peers=False)
        pass_time(nodes, clock, 11.5)
        assert "a" in nodes.silent_nodes(), "the new one has not died"
        await nodes.close(0.1)

    asyncio.run(act())


@pytest.mark.usefixtures("made")
def test_a_coordinator_that_stood_still_has_nobody_fall_silent_meanwhile():
    clock = FakeClock()

    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), clock)
        await nodes.ensure({"a", "b"}, {"a", "b"})
        pass_time(nodes, clock, 1.0)
        clock.now_s += 600.0
        assert nodes.silent_nodes() == [], "what they have said meanwhile has yet to be taken"
        beating = asyncio.create_task(nodes.keep_awake())
        await asyncio.sleep(0)
        beating.cancel()
        nodes.hear("a", {}, knows_peers=True)
        pass_time(nodes, clock, 10.5)
        assert nodes.silent_nodes() == ["b"], "it has had a second, and all of that"

    asyncio.run(act())


def test_a_keeper_that_knows_no_peers_is_told_of_them_and_nobody_else(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    told: list[tuple[str, list[str]]] = []

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        def introduce(keepers: dict[str, Any]) -> None:
            told.append((node_id, sorted(keepers)))

        return SimpleNamespace(introduce=SimpleNamespace(remote=introduce))

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    asyncio.run(nodes.ensure({"a", "b", "c"}))
    everybody = ["a", "b", "c"]
    assert sorted(told) == [(each, everybody) for each in everybody]
    told.clear()
    nodes.hear("b", {}, knows_peers=False)
    nodes.hear("given up", {}, knows_peers=False)
    assert told == [("b", everybody)]


def test_of_a_thousand_keepers_a_thousand_handles_are_written_and_not_a_million(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    written: list[set[str]] = []
    told: list[object] = []

    def put(keepers: dict[str, Any]) -> object:
        written.append(set(keepers))
        return f"object {len(written)}"

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        return SimpleNamespace(
            introduce=SimpleNamespace(remote=told.append),
            forget_node=SimpleNamespace(remote=nothing),
        )

    monkeypatch.setattr("ray.put", put)
    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    nodes.note_alive({"another": LivingNode("10.0.0.1")})
    names = {f"node {number}" for number in range(1000)}
    asyncio.run(nodes.ensure(names))
    assert told == ["object 1"] * 1000
    nodes.hear("node 7", {}, knows_peers=False)
    asyncio.run(nodes.ensure(names))
    assert told == ["object 1"] * 1001
    nodes.forget("node 7")
    assert told[1001:] == ["object 2"] * 999
    assert written == [names, names - {"node 7"}]


def test_the_dead_are_forgotten_as_of_when_it_was_last_looked_and_nobody_before(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse() -> list[Any]:
        raise AssertionError("Ray is asked elsewhere")

    monkeypatch.setattr("ray.nodes", refuse)
    monkeypatch.setattr("ray.put", lambda value: value)
    keeper = SimpleNamespace(
        introduce=SimpleNamespace(remote=nothing), forget_node=SimpleNamespace(remote=nothing)
    )
    monkeypatch.setattr(NodeWatch, "_make_keeper", lambda *_: keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    asyncio.run(nodes.ensure({"a", "b"}))
    nodes.forget_dead()
    assert nodes.node_ids == {"a", "b"}, "it isn't known of any"
    nodes.note_alive({"a": LivingNode("10.0.0.1", {"rack": "1"})})
    nodes.forget_dead()
    assert nodes.node_ids == {"a"}
    nodes.note_alive({"c": LivingNode("10.0.0.3")})
    assert nodes.labels == {"a": {"rack": "1"}, "c": {}}, "also of those that are gone"


def test_a_node_counts_until_it_is_given_up_and_its_workers_are_ended_also_after(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    fenced: list[tuple[str, int, str]] = []

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        def fence(incarnation: int, worker_id: str) -> None:
            fenced.append((node_id, incarnation, worker_id))

        return SimpleNamespace(
            introduce=SimpleNamespace(remote=nothing), fence=SimpleNamespace(remote=fence)
        )

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    assert nodes.counts("a"), "a new coordinator has yet to look for it"
    asyncio.run(nodes.ensure({"a", "b"}))
    nodes.forget("b")
    assert [nodes.counts(each) for each in "ab"] == [True, False]
    for node_id in ("a", "b", "never seen"):
        nodes.fence(3, node_id, "slot0-1.0")
    assert fenced == [("a", 3, "slot0-1.0"), ("b", 3, "slot0-1.0")]
    asyncio.run(nodes.ensure({"b"}))
    assert nodes.counts("b")


def test_stacks_are_asked_of_those_keepers_that_have_the_workers(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, tuple[str, ...]]] = []
    silent = asyncio.Event()

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        async def dump(worker_ids: tuple[str, ...]) -> dict[str, StackDump]:
            asked.append((node_id, worker_ids))
            if node_id == "fails":
                raise RayError
            if node_id == "silent":
                await silent.wait()
            return {worker_id: StackDump(1, node_id) for worker_id in worker_ids}

        ignore = SimpleNamespace(remote=nothing)
        return SimpleNamespace(introduce=ignore, dump_stacks=SimpleNamespace(remote=dump))

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)

    async def act() -> dict[str, StackDump]:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        await nodes.ensure({"a", "fails", "silent", "idle"})
        here = Progress(1, 1, EpochId(1, 1), Phase.COMPUTE, 0.0, 0.0)
        nodes.hear("a", {"w0": here, "w1": here, "w2": here}, knows_peers=True)
        nodes.hear("fails", {"w3": here}, knows_peers=True)
        nodes.hear("silent", {"w4": here}, knows_peers=True)
        nodes.hear("idle", {"w5": here}, knows_peers=True)
        return await nodes.ask_stacks(["w0", "w2", "w3", "w4", "w9"], 0.05)

    assert asyncio.run(act()) == {"w0": StackDump(1, "a"), "w2": StackDump(1, "a")}
    assert sorted(asked) == [("a", ("w0", "w2")), ("fails", ("w3",)), ("silent", ("w4",))]


def test_without_workers_nobody_is_asked_for_stacks(made: list[str]):
    nodes = NodeWatch("job-1", make_job(), FakeClock())
    assert asyncio.run(nodes.ask_stacks(["w0"], 0.05)) == {}


def test_links_are_measured_by_those_that_are_named_and_who_fails_is_left_out(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, str]] = []
    silent = asyncio.Event()
    speed = LinkSpeed(1e6, 0.01)

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        async def probe(target: PeerAddress) -> LinkSpeed:
            asked.append((node_id, target.host))
            if node_id == "fails":
                raise RayError
            if node_id == "silent":
                await silent.wait()
            return speed

        ignore = SimpleNamespace(remote=nothing)
        return SimpleNamespace(introduce=ignore, probe=SimpleNamespace(remote=probe))

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)

    async def act() -> dict[str, LinkSpeed]:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        await nodes.ensure({"a", "b", "fails", "silent"})
        others = ("a", "fails", "silent", "unknown")
        targets = {each: PeerAddress(f"beside {each}", 1, "") for each in others}
        assert await nodes.probe_links({}, 0.05) == {}
        return await nodes.probe_links(targets, 0.05)

    assert asyncio.run(act()) == {"a": speed}
    assert sorted(asked) == [(each, f"beside {each}") for each in ("a", "fails", "silent")]


def test_nodes_are_asked_for_all_others_that_they_can_t_reach(
    made: list[str], monkeypatch: pytest.MonkeyPatch
):
    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        async def find_unreachable(targets: list[PeerAddress]) -> list[PeerAddress]:
            assert node_id not in [each.host for each in targets]
            if node_id == "fails":
                raise RayError
            return [each for each in targets if {node_id, each.host} == {"a", "b"}]

        ignore = SimpleNamespace(remote=nothing)
        find = SimpleNamespace(remote=find_unreachable)
        return SimpleNamespace(introduce=ignore, find_unreachable=find)

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr(KeeperDeaths, "follow", nothing)

    async def act() -> dict[str, list[str]]:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        await nodes.ensure({"a", "b", "c", "fails"})
        assert await nodes.ask_unreachable({}, 0.05) == {}
        asked = {each: PeerAddress(each, 1, "") for each in ("a", "b", "c", "fails", "unknown")}
        return await nodes.ask_unreachable(asked, 5.0)

    assert asyncio.run(act()) == {"a": ["b"], "b": ["a"], "c": []}
