"""Who loses its rank for bits that differ from the others'."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import (
    FakeClock,
    FakePool,
    FakeSuperior,
    FakeWorker,
    describe,
    guard_of,
    settle,
    until,
)
from trainflow.computation.reports import RanksDiffer
from trainflow.coordination.consistency_watch import ConsistencyWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId

IDS = ("a", "b", "c")


class Run:
    """Three ranks, each on a node of its own."""

    def __init__(self, directory: Path):
        pool = FakePool([FakeWorker(each, None) for each in IDS])
        for each in IDS:
            pool.entries[each].description = replace(describe(each), node_id=f"node of {each}")
        self.pool: Any = pool
        self.control: Any = SimpleNamespace(members=IDS, epoch=EpochId(1, 0))
        self.superior = FakeSuperior(pool)
        self.record = RunRecord(directory, FakeClock())
        self.watch = self.open()

    def open(self) -> ConsistencyWatch:
        guard = guard_of(self.record)
        return ConsistencyWatch(self.pool, self.control, self.record, self.superior, guard)

    def tell(self, *ranks: int, in_spot_check: bool = False) -> None:
        """Say who differs in a new try of the step."""
        self.control.epoch = EpochId(1, self.control.epoch.counter + 1)
        self.tell_again(*ranks, in_spot_check=in_spot_check)

    def tell_again(
        self, *ranks: int, in_spot_check: bool = False, epoch: EpochId | None = None
    ) -> None:
        tried_in = self.control.epoch if epoch is None else epoch
        self.watch.on_difference(RanksDiffer(7, tried_in, ranks, in_spot_check))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [each for each in self.record.events_since(0) if each["kind"] == "ranks_differ"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_sums_that_differ_once_are_told_and_cost_nobody_its_rank(run: Run):
    run.tell(1)
    (event,) = run.events
    assert "step 7: rank 1 came to other gradients after they were summed" in event["text"]
    named = event["data"]
    assert (named["ranks"], named["workers"], named["nodes"]) == ([1], ["b"], ["node of b"])
    assert run.superior.lost == []


@pytest.mark.parametrize("known", [None, EpochId(1, 0)], ids=["restarted", "released"])
def test_what_is_told_before_the_epoch_is_known_is_judged_once_it_is(
    run: Run, known: EpochId | None
):
    """As by ranks that had no coordinator, or that were faster than the call that released them."""

    async def act() -> None:
        run.control.epoch = known
        run.tell_again(1, in_spot_check=True, epoch=EpochId(1, 1))
        run.tell_again(0, in_spot_check=True, epoch=EpochId(1, 2))
        await settle()
        assert (run.events, run.superior.lost) == ([], [])
        run.control.epoch = EpochId(1, 2)
        await until(lambda: run.superior.lost)

    asyncio.run(act())
    assert run.superior.lost == [("a",)]
    assert [event["data"]["epoch"] for event in run.events] == ["1.2"], "the other one is past"


def test_a_worker_whose_sums_differ_again_loses_its_rank_also_to_another_coordinator(run: Run):
    run.tell(1)
    run.tell(2)
    assert run.superior.lost == []
    run.watch = run.open()
    run.tell(1)
    assert run.superior.lost == [("b",)]


def test_who_computes_wrong_loses_its_rank_at_once(run: Run):
    run.tell(0, in_spot_check=True)
    assert run.superior.lost == [("a",)]
    assert "of a microbatch that all computed" in run.events[0]["text"]


@pytest.mark.parametrize("in_spot_check", [True, False])
def test_without_a_majority_nobody_does(run: Run, *, in_spot_check: bool):
    for _ in range(3):
        run.tell(0, 1, 2, in_spot_check=in_spot_check)
    run.tell(1)
    assert run.superior.lost == []
    assert "no majority" in run.events[0]["text"]


def test_what_was_told_of_an_epoch_that_is_past_changes_nothing(run: Run):
    run.tell_again(1, in_spot_check=True, epoch=EpochId(0, 9))
    assert run.superior.lost == []
    assert run.events == []


def test_what_is_heard_again_is_judged_once_also_by_another_coordinator(run: Run):
    run.tell(1)
    run.tell_again(1)
    run.watch = run.open()
    run.tell_again(1)
    assert len(run.events) == 1
    assert run.superior.lost == []


def test_that_it_was_seen_before_counts_after_very_many_other_events(run: Run):
    run.tell(1)
    for number in range(1100):
        run.record.add_event("checkpoint", "made", step=number)
    run.tell(1)
    assert run.superior.lost == [("b",)]


def test_what_can_t_be_judged_stops_nothing(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run.pool, "nodes_of", lambda _: 1 / 0, raising=False)
    run.tell(1)
    run.tell(2)
    assert run.events == []
    (event,) = run.record.events_since(0)
    assert event["kind"] == "detector_off", "told once"
