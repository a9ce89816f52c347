"""Places for workers, without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trainflow.config.job import ResourcesConfig
from trainflow.coordination import bundles as module
from trainflow.coordination.bundles import Bundles


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
        await asyncio.sleep(0)
        (first,) = placed
        placed[first].set()
        await reserving
        adding = asyncio.create_task(bundles.add("a", 5.0))
        await asyncio.sleep(0)
        bundles.give_back()
        placed[f"{first}/2"].set()
        return await adding

    assert asyncio.run(act()) is None
    assert sorted(removed) == sorted(placed)
