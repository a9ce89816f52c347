"""Places for workers, without Ray."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import settle, until
from trainflow.config.job import ResourcesConfig
from trainflow.coordination import bundles as module
from trainflow.coordination.bundles import Bundles
from trainflow.coordination.names import placement_group_name


def test_a_bundle_that_is_placed_once_all_were_given_back_is_given_back_too(
    monkeypatch: pytest.MonkeyPatch,
):
    placed: dict[str, asyncio.Event] = {}
    removed: list[str] = []

    def make(specs: list[Any], *, name: str, **_: Any) -> Any:
        placed[name] = asyncio.Event()
        return SimpleNamespace(name=name, bundle_specs=specs, ready=placed[name].wait)

    monkeypatch.setattr(module, "placement_group", make)
    monkeypatch.setattr(module, "remove_placement_group", lambda group: removed.append(group.name))

    async def act() -> int | None:
        bundles = Bundles("job-1", ResourcesConfig())
        reserving = asyncio.create_task(bundles.reserve(2))
        await until(lambda: placed)
        (first,) = placed
        placed[first].set()
        await reserving
        adding = asyncio.create_task(bundles.add("a", 5.0))
        await until(lambda: len(placed) > 1)
        await bundles.give_back()
        placed[f"{first}/2"].set()
        return await adding

    assert asyncio.run(act()) is None
    assert sorted(removed) == sorted(placed)


def test_the_bundles_that_the_others_are_found_by_are_given_back_last(
    monkeypatch: pytest.MonkeyPatch,
):
    removed: list[str] = []
    show_groups(monkeypatch, FIRST, f"{FIRST}/2", f"{FIRST}/3")
    monkeypatch.setattr(module, "remove_placement_group", lambda group: removed.append(group.name))

    async def act() -> None:
        bundles = Bundles("job-1", ResourcesConfig())
        assert await bundles.find()
        await bundles.give_back()

    asyncio.run(act())
    assert removed == [f"{FIRST}/2", f"{FIRST}/3", FIRST]


def show_groups(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have Ray know placement groups of these names, and another that was removed."""

    def get(name: str) -> Any:
        if name not in names:
            raise ValueError(f"no group {name}")
        return SimpleNamespace(name=name, bundle_specs=[{}, {}])

    table = {str(i): {"name": name, "state": "CREATED"} for i, name in enumerate(names)}
    table["gone"] = {"name": f"{FIRST}/9", "state": "REMOVED"}
    monkeypatch.setattr(module, "get_placement_group", get)
    monkeypatch.setattr(module, "placement_group_table", lambda: table)


FIRST = placement_group_name("job-1")


@pytest.mark.parametrize(
    ("names", "numbers"),
    [((), set()), ((FIRST,), {0, 1}), ((FIRST, f"{FIRST}/4", f"{FIRST}0/5"), {0, 1, 4})],
    ids=["none", "those of the start", "one more, and another job's"],
)
def test_bundles_of_an_earlier_coordinator_are_found(
    names: tuple[str, ...], numbers: set[int], monkeypatch: pytest.MonkeyPatch
):
    show_groups(monkeypatch, *names)
    bundles = Bundles("job-1", ResourcesConfig())
    assert asyncio.run(bundles.find()) is bool(names)
    assert bundles.numbers() == numbers


def test_the_event_loop_goes_on_while_ray_does_not_tell_of_bundles(
    monkeypatch: pytest.MonkeyPatch,
):
    may_answer = threading.Event()

    def get(_: str) -> Any:
        assert may_answer.wait(5.0)
        raise ValueError("there is none")

    monkeypatch.setattr(module, "get_placement_group", get)

    async def act() -> bool:
        finding = asyncio.ensure_future(Bundles("job-1", ResourcesConfig()).find())
        await settle()
        assert not finding.done()
        may_answer.set()
        return await finding

    assert asyncio.run(act()) is False


class SilentHead:
    """Ray makes and removes placement groups once it may answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.may_answer = threading.Event()
        self.made: list[str] = []
        self.removed: list[str] = []
        monkeypatch.setattr(module, "placement_group", self._make)
        monkeypatch.setattr(module, "remove_placement_group", self._remove)

    def _make(self, specs: list[Any], *, name: str, **_: Any) -> Any:
        assert self.may_answer.wait(5.0)
        self.made.append(name)
        return SimpleNamespace(name=name, bundle_specs=specs, ready=settle)

    def _remove(self, group: Any) -> None:
        assert self.may_answer.wait(5.0)
        self.removed.append(group.name)


def test_the_event_loop_goes_on_while_ray_makes_no_bundles_and_takes_none_back(
    monkeypatch: pytest.MonkeyPatch,
):
    head = SilentHead(monkeypatch)

    async def expect_waiting(asking: "asyncio.Task[Any]") -> None:
        await settle()
        assert not asking.done()
        head.may_answer.set()
        await asking
        head.may_answer.clear()

    async def act() -> None:
        bundles = Bundles("job-1", ResourcesConfig())
        await expect_waiting(asyncio.create_task(bundles.reserve(2)))
        await expect_waiting(asyncio.create_task(bundles.add("a", 5.0)))
        assert bundles.numbers() == {0, 1, 2}
        await expect_waiting(asyncio.create_task(bundles.drop(2)))
        await expect_waiting(asyncio.create_task(bundles.give_back()))

    asyncio.run(act())
    assert head.made == [FIRST, f"{FIRST}/2"]
    assert head.removed == [f"{FIRST}/2", FIRST]


def test_the_number_of_a_bundle_that_is_gone_is_given_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    """Who waits to start a worker in the one that is gone would start it in the other."""
    head = SilentHead(monkeypatch)
    head.may_answer.set()

    async def act() -> list[int | None]:
        bundles = Bundles("job-1", ResourcesConfig())
        await bundles.reserve(2)
        first = await bundles.add("a", 5.0)
        assert first is not None
        await bundles.drop(first)
        return [first, await bundles.add("b", 5.0)]

    assert asyncio.run(act()) == [2, 3]


def test_bundles_that_ray_makes_though_nobody_waits_any_more_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
):
    head = SilentHead(monkeypatch)

    async def act() -> None:
        bundles = Bundles("job-1", ResourcesConfig())
        reserving = asyncio.create_task(bundles.reserve(2))
        await settle()
        reserving.cancel()
        await bundles.give_back()
        head.may_answer.set()
        await until(lambda: head.removed)

    asyncio.run(act())
    assert head.removed == [FIRST]
