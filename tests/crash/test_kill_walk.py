"""SIGKILL at every point between the first chunk and the last removal.

Each life is ended at its n-th change to the store, for every n there is, also in the middle of a
file's bytes. After each death what counts must be whole, nothing acknowledged may be gone, and
going on from there must leave the one checkpoint that is kept, and no garbage.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from tests.crash import processes
from tests.crash.life import (
    STEPS,
    OwnDesk,
    Place,
    bring_all,
    damage,
    leave_snapshots,
    remainders_of,
    require_clean,
    require_restorable,
    require_whole,
)
from tests.crash.processes import NEVER, dies_before, end, was_killed

LATER = STEPS[-1] + 10

pytestmark = pytest.mark.slow


def go_on(place: Place) -> None:
    """Begin again as a run does that nobody is left of, and do what is left to do."""
    shutil.rmtree(place.node, ignore_errors=True)
    done = require_restorable(place)
    desk = OwnDesk(place, incarnation=2)
    try:
        desk.find_stored()
        newest = desk.control.newest
        assert (newest.step if newest else None) == (done[-1] if done else None)
        leave_snapshots(place, *(step for step in (*STEPS, LATER) if step > max([0, *done])))
        bring_all(place, desk)
    finally:
        desk.close()


def walk(places: Iterator[Place], live: Callable[[Place, int], bool]) -> set[str]:
    """Live until the n-th operation for each n; returns at what the lives ended."""
    ends: list[str] = []
    wrong: list[str] = []
    for number in count():
        place = next(places)
        try:
            killed = live(place, number)
        except AssertionError as error:
            killed = True
            wrong.append(f"{_end_of(place)}: {error}")
        if not killed:
            break
        ends.append(_end_of(place))
    assert not wrong, f"after {len(wrong)} of {len(ends)} deaths:\n" + "\n".join(wrong)
    return set(ends)


def _end_of(place: Place) -> str:
    return place.note.read_text() if place.note.exists() else "a whole life"


def require_complete(ends: set[str], *expected: str) -> None:
    """Require that the walk came past these kinds of operations."""
    missing = [each for each in expected if not any(end.startswith(each) for end in ends)]
    assert not missing, sorted(ends)


def save(place: Place, *steps: int, incarnation: int = 1) -> None:
    """Make checkpoints, without any death."""
    desk = OwnDesk(place, incarnation)
    try:
        leave_snapshots(place, *steps)
        bring_all(place, desk)
    finally:
        desk.close()


WRITES = ("open chunks/", "flush chunks/", "os.rename chunks/")
COMMITS = ("flush manifests/", "os.rename manifests/", "flush committed/", "os.link committed/")
REMOVALS = ("os.remove committed/0", "os.remove manifests/0", "os.remove chunks/")


def test_a_whole_node_dies(places: Iterator[Place]):
    """Workers, Keeper and coordinator at once, and the node's memory with them."""

    def live(place: Place, fatal: int) -> bool:
        killed = was_killed(processes.start(processes.run_node, place, fatal))
        go_on(place)
        require_clean(place, LATER)
        return killed

    require_complete(walk(places, live), *WRITES, *COMMITS, *REMOVALS)


@pytest.mark.parametrize("places", [pytest.param(1, marks=pytest.mark.soak), 2], indirect=True)
def test_the_coordinator_dies(places: Iterator[Place]):
    """Another takes over, while the Keeper still holds a permit of the dead one."""

    def live(place: Place, fatal: int) -> bool:
        leave_snapshots(place, *STEPS)
        first = processes.start(processes.run_coordinator, place, 1, fatal)
        keeper = processes.start(processes.run_keeper, place, NEVER)
        killed = dies_before(first, keeper)
        second = None
        if killed:
            require_restorable(place)
            second = processes.start(processes.run_coordinator, place, 2, NEVER)
        assert not was_killed(keeper)
        end(second or first)
        assert require_restorable(place)[-1] == STEPS[-1]
        save(place, LATER, incarnation=3)
        require_clean(place, LATER)
        return killed

    require_complete(walk(places, live), *COMMITS, *REMOVALS)


@pytest.mark.soak
def test_the_keeper_dies(places: Iterator[Place]):
    """It comes back; the coordinator still holds the permit that it gave the dead one."""

    def live(place: Place, fatal: int) -> bool:
        leave_snapshots(place, *STEPS, LATER)
        coordinator = processes.start(processes.run_coordinator, place, 1, NEVER)
        killed = was_killed(processes.start(processes.run_keeper, place, fatal))
        if killed:
            require_restorable(place)
            assert not was_killed(processes.start(processes.run_keeper, place, NEVER))
        end(coordinator)
        require_restorable(place)
        require_clean(place, LATER)
        return killed

    require_complete(walk(places, live), *WRITES)


@pytest.mark.soak
def test_a_worker_dies_while_it_takes_a_snapshot(places: Iterator[Place]):
    """Half a snapshot is none, a whole one is brought; a later one replaces both."""

    def live(place: Place, fatal: int) -> bool:
        leave_snapshots(place, STEPS[0])
        killed = was_killed(processes.start(processes.run_worker, place, STEPS[1], fatal))
        if killed:
            (place.node / "w1b.stamp").unlink(missing_ok=True)
        desk = OwnDesk(place, incarnation=1)
        try:
            bring_all(place, desk)
            assert STEPS[0] in require_restorable(place)
            leave_snapshots(place, STEPS[2])
            bring_all(place, desk)
        finally:
            desk.close()
        require_clean(place, STEPS[2])
        return killed

    ends = walk(places, live)
    require_complete(ends, "call begin", "call _copy", "return _copy", "return complete")


def test_a_bad_checkpoint_is_taken_away(places: Iterator[Place]):
    """Whoever dies over it: the one before stays, and the step is made again, of good chunks."""

    def live(place: Place, fatal: int) -> bool:
        place = replace(place, keep_last=2)
        save(place, *STEPS[:2])
        damage(place, STEPS[1])
        killed = was_killed(processes.start(processes.run_quarantine, place, STEPS[1], fatal))
        require_whole(place, STEPS[0])
        desk = OwnDesk(place, incarnation=2)
        try:
            desk.drop(STEPS[1])
            leave_snapshots(place, STEPS[1])
            bring_all(place, desk)
        finally:
            desk.close()
        for step in STEPS[:2]:
            require_whole(place, step)
        return killed

    require_complete(walk(places, live), "os.remove committed/0", "os.remove chunks/")


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("chunks", "manifests")),
        "committed",
    ],
)
def test_half_a_file_is_removed_by_a_later_collection(places: Iterator[Place], kind: str):
    place = next(places)
    for number in count():
        assert was_killed(processes.start(processes.run_node, place, number)), "no such operation"
        if _end_of(place).startswith(f"flush {kind}/"):
            break
        place = next(places)
    assert remainders_of(place)
    go_on(place)
    assert remainders_of(place) == []
