"""An epoch that can't be formed as members can't reach each other is formed without one of them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from ray.exceptions import RayError

from tests.unit.coordination.fakes import FakePool, FakeWorker, Method, until
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.epochs import INITIAL_VERSION, EpochSpec, MemberReport


class CutScene(Scene):
    """The second member can't reach the third; there is a spare."""

    def __init__(self, directory: Path):
        super().__init__(directory, FRESH)
        self.asked: list[tuple[str, ...]] = []
        self.can_tell = True
        self.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        self.control.troubles.separation = SimpleNamespace(find_cut_off=self.find_cut_off)
        self.workers[1].form = Method(self.form)
        self.superior.on_lost = self.control.on_gone

    async def find_cut_off(self, members: tuple[str, ...]) -> tuple[list[str], str] | None:
        self.asked.append(members)
        return ([self.ids[2]], "they can't reach each other") if self.can_tell else None

    def form(self, spec: EpochSpec, *, at_boundary: bool) -> MemberReport:
        if self.ids[2] in spec.members:
            raise RayError
        return MemberReport(self.ids[1], INITIAL_VERSION, tail_done=True)


def test_who_is_cut_off_is_lost_and_a_spare_is_taken(tmp_path: Path):
    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.control.open()
        await until(lambda: scene.control.is_whole and scene.control.members)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.asked == [scene.ids], "from the second attempt on: a death explains the first"
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.superior.lost == [(scene.ids[2],)]
    assert not scene.superior.endings


def test_where_nobody_is_to_be_lost_it_is_tried_a_bounded_number_of_times(tmp_path: Path):
    async def main() -> CutScene:
        scene = CutScene(tmp_path)
        scene.can_tell = False
        scene.control.open()
        await until(lambda: scene.superior.endings)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.superior.lost == []
    assert scene.superior.endings[0].reason.startswith("no epoch could be formed in 20 attempts")
    assert len(scene.asked) == 19
