"""What a run does when the Keeper that a rank restores from doesn't answer: it may be back."""

from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_kept_state import (
    NOTHING,
    FakeCheckpoints,
    FakeNodes,
    Scene,
    address,
    version,
)
from trainflow.computation.reports import CheckpointUnusable
from trainflow.coordination.messages import Holding
from trainflow.epochs import HeldState, PeerAddress, StoredState

ELSEWHERE = PeerAddress("127.0.0.1", 2, "another")
STORED = StoredState("/store", 5)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainflow.coordination.memory_tier._ASK_AGAIN_AFTER_S", 0.0)


class Nodes(FakeNodes):
    """A second passes whenever they are asked; a Keeper that was killed is back after a while."""

    def __init__(self, **newest: int | None):
        super().__init__(**newest)
        self.clock = FakeClock()
        self._back: tuple[float, Holding] | None = None

    async def ask_holdings(
        self, timeout_s: float, *, also_dismissed: bool = False
    ) -> list[Holding]:
        self.clock.now_s += 1.0
        if self._back is not None and self.clock.now_s >= self._back[0]:
            self.holdings["a"] = self._back[1]
        return await super().ask_holdings(timeout_s, also_dismissed=also_dismissed)

    def kill_keeper(self, back_after_s: float | None) -> None:
        """Kill node a's; what it held is in the node's memory still."""
        held = self.holdings.pop("a").version
        if back_after_s is not None:
            self._back = self.clock.now_s + back_after_s, Holding("a", ELSEWHERE, held)


def make_scene(directory: Path, nodes: Nodes, *stored_steps: int) -> Scene:
    scene = Scene(directory, nodes, FakeCheckpoints(*stored_steps))
    nodes.clock = scene.clock
    scene.record.last_step = 8
    return scene


def find_base(scene: Scene) -> HeldState:
    stored = scene.plan(NOTHING, 8).stored
    assert isinstance(stored, HeldState)
    return stored


def report(scene: Scene, stored: HeldState, *unreachable: PeerAddress) -> None:
    """Let rank 0 say that it can't go on from there."""
    scene.kept.take(CheckpointUnusable(stored, "connection refused", unreachable))
    scene.background.finish()


@pytest.mark.parametrize("stored_steps", [(), (5,)], ids=["nothing stored", "a checkpoint"])
def test_a_keeper_that_was_killed_is_waited_for(tmp_path: Path, stored_steps: tuple[int, ...]):
    nodes = Nodes(a=8, b=7)
    scene = make_scene(tmp_path, nodes, *stored_steps)
    base = find_base(scene)
    nodes.kill_keeper(back_after_s=20.0)
    report(scene, base, *base.sources)
    assert find_base(scene) == HeldState(version(8), (ELSEWHERE,))
    assert not scene.superior.endings
    assert "can't be reached: connection refused" in scene.events("snapshot_unreachable")[0]


def test_the_next_plan_waits_too(tmp_path: Path):
    nodes = Nodes(a=8)
    scene = make_scene(tmp_path, nodes, 5)
    base = find_base(scene)
    nodes.kill_keeper(back_after_s=20.0)
    scene.memory.discard(base, base.sources)
    assert find_base(scene) == HeldState(version(8), (ELSEWHERE,))


@pytest.mark.parametrize(
    ("elsewhere", "stored_steps", "base"),
    [
        (7, (5,), HeldState(version(7), (address("b"),))),
        (None, (5,), STORED),
        (None, (), None),
    ],
)
def test_a_keeper_that_stays_away_is_given_up_after_a_while(
    tmp_path: Path,
    elsewhere: int | None,
    stored_steps: tuple[int, ...],
    base: HeldState | StoredState | None,
):
    nodes = Nodes(a=8, b=elsewhere)
    scene = make_scene(tmp_path, nodes, *stored_steps)
    lost = find_base(scene)
    nodes.kill_keeper(back_after_s=None)
    began_s = scene.clock.now_s
    report(scene, lost, *lost.sources)
    assert 30.0 <= scene.clock.now_s - began_s < 40.0
    if base is None:
        assert "step 8: connection refused" in scene.superior.endings[0].reason
    else:
        assert not scene.superior.endings
        assert scene.plan(NOTHING, 8).stored == base


def test_a_keeper_that_lives_and_was_not_reached_is_read_from_again_but_not_for_ever(
    tmp_path: Path,
):
    scene = make_scene(tmp_path, Nodes(a=8), 5)
    base = find_base(scene)
    for _ in range(3):
        report(scene, base, *base.sources)
        assert find_base(scene) == base
    scene.clock.now_s += 31.0
    report(scene, base, *base.sources)
    assert scene.plan(NOTHING, 8).stored == STORED


def test_a_keeper_that_was_not_reached_long_ago_is_waited_for_once_more(tmp_path: Path):
    scene = make_scene(tmp_path, Nodes(a=8), 5)
    base = find_base(scene)
    report(scene, base, *base.sources)
    scene.clock.now_s += 1000.0
    report(scene, base, *base.sources)
    assert find_base(scene) == base


def test_what_is_damaged_is_left_out_beside_what_was_not_reached(tmp_path: Path):
    scene = make_scene(tmp_path, Nodes(a=8, b=8), 5)
    base = find_base(scene)
    assert base.sources == (address("a"), address("b"))
    report(scene, base, address("b"))
    assert find_base(scene).sources == (address("b"),)
