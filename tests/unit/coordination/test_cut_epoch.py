"""An epoch that can't be formed as members can't reach each other is formed without one of them."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, Method, describe, settle, until
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.coordination.cut_watch import CutWatch
from trainflow.coordination.forming_attempts import SEVERAL
from trainflow.coordination.messages import Holding
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import EpochSpec, MemberReport, PeerAddress


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

    def refuse(self) -> None:
        """From now on they fail at once."""
        for worker in self.workers[1:3]:
            worker.stuck = False
            worker.form = Method(partial(self._fail, worker))

    async def _fail(self, worker: FakeWorker, spec: EpochSpec, **how: Any) -> MemberReport:
        if {self.ids[1], self.ids[2]} <= set(spec.members):
            raise RayError("Gloo connectFullMesh failed: No route to host")
        return await worker._form(spec, **how)

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


def test_who_is_refused_is_found_after_a_few_attempts_and_a_spare_is_taken(tmp_path: Path):
    """It takes no five seconds until that is looked for, nor do attempts run out before."""

    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.refuse()
        scene.control.open()
        await until(lambda: scene.control.attempts.num_failed >= 3)
        assert not scene.superior.endings
        await scene.watch.tick()
        await until(lambda: scene.control.members)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.superior.lost == [(scene.ids[2],)]
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.control.attempts.num_failed == 0


def test_where_nobody_can_leave_others_are_started_and_one_of_them_leaves_for_who_comes(
    tmp_path: Path,
):
    """Replacements wait while training recovers: here it can't, before there is one."""

    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.pool.entries.pop("slot3-1.3")
        scene.workers[1].stuck = scene.workers[2].stuck = False
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.refuse()
        scene.lose(0)
        await asyncio.wait_for(scene.control.wait_settled(), 5.0)
        assert scene.control.attempts.num_failed >= SEVERAL
        await scene.watch.tick()
        assert scene.superior.lost == [], "as many as may train are left, and no more"
        spare = FakePool([FakeWorker("slot0-1.r1", None)]).entries["slot0-1.r1"]
        spare.description = replace(describe(spare.worker_id), node_id="d")
        scene.pool.entries[spare.worker_id] = spare
        scene.clock.now_s += 60.0
        await scene.watch.tick()
        await until(lambda: "slot0-1.r1" in scene.control.members)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.superior.lost == [(scene.ids[2],)]
    assert scene.control.members == (scene.ids[1], "slot0-1.r1")
    assert not scene.superior.endings


def test_where_nobody_can_leave_it_is_told_and_tried_on_for_half_an_hour(tmp_path: Path):
    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.refuse()
        scene.control.open()
        await until(lambda: "forming_fails" in scene.kinds())
        scene.clock.now_s += 1790.0
        await until(lambda: scene.control.attempts.num_failed >= 4)
        assert not scene.superior.endings
        scene.clock.now_s += 20.0
        await until(lambda: scene.superior.endings)
        return scene

    scene = asyncio.run(main())
    (told,) = [each for each in scene.record.events_since(0) if each["kind"] == "forming_fails"]
    assert told["text"] == (
        "no epoch could be formed in 3 attempts, and it is tried on for 1800 s; last: "
        "Gloo connectFullMesh failed: No route to host"
    )
    assert "attempts within 1800 s; last: Gloo" in scene.superior.endings[0].reason
