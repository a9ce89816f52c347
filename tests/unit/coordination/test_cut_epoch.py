"""An epoch that can't be formed as members can't reach each other is formed without one of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, describe, settle
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.coordination.cut_watch import CutWatch
from trainflow.coordination.messages import Holding
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import PeerAddress


class CutScene(Scene):
    """Each worker has a node of its own; the second and the third can't connect."""

    def __init__(self, directory: Path):
        super().__init__(directory, FRESH)
        self.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        for number, entry in enumerate(self.pool.entries.values()):
            described = replace(describe(entry.worker_id), node_id="abcd"[number])
            entry.description = entry.actor.description = described
        self.workers[1].stuck = self.workers[2].stuck = True
        self.superior.on_lost = self.on_lost
        self.unfit = self.control.candidacy.unfit = UnfitNodes()
        nodes: Any = SimpleNamespace(
            unfit=self.unfit,
            host_of=lambda node: node,
            ask_holdings=self.ask_holdings,
            ask_unreachable=self.ask_unreachable,
        )
        any_pool: Any = self.pool
        parts = any_pool, nodes, self.control, self.record, self.clock
        self.watch = CutWatch(make_job(world=3, minimum=2), *parts)

    def on_lost(self, entry: Any, cause: str) -> None:
        self.workers[1].stuck = False
        self.control.on_gone(entry, cause)

    async def ask_holdings(self, timeout_s: float) -> list[Holding]:
        return [Holding(each, PeerAddress(each, 1, ""), None) for each in "abcd"]

    async def ask_unreachable(self, addresses: Any, timeout_s: float) -> dict[str, list[str]]:
        return {each: ["c"] if each == "b" else [] for each in addresses}


def test_who_is_cut_off_is_lost_and_a_spare_is_taken(tmp_path: Path):
    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.control.open()
        await settle()
        assert not scene.control.members, "two of them wait for each other"
        scene.clock.now_s += 6.0
        await scene.watch.tick()
        await settle()
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.superior.lost == [(scene.ids[2],)]
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.unfit.all() == {"c"}
    assert not scene.superior.endings
