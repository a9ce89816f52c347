"""What is heard of an epoch late counts only for that epoch."""

import asyncio
from pathlib import Path

from tests.unit.coordination.fakes import Method, settle
from tests.unit.coordination.test_epoch_control import (
    FRESH,
    Scene,
    note_calls_to_form,
    parked,
    seen,
)
from trainflow.coordination.messages import WorkerDescription
from trainflow.epochs import EpochId, Phase


def test_an_answer_that_comes_once_the_next_epoch_is_formed_breaks_nothing(tmp_path: Path):
    """By then it says what the member was asked to do meanwhile: it is in another epoch."""

    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        may_answer = asyncio.Event()

        async def describe_late() -> WorkerDescription:
            await may_answer.wait()
            return parked(scene, 1)

        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.workers[1].describe = Method(describe_late)
        calls.append(note_calls_to_form(scene.workers[0], stuck_at_boundary=True))
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await settle()
        scene.report(0, 2, pausing=True)
        await settle()
        assert scene.workers[1].formed[-1].epoch == EpochId(1, 2)
        may_answer.set()
        await settle()
        scene.control.close()
        return scene

    calls: list[list[bool]] = []
    scene = asyncio.run(main())
    assert scene.superior.failures == []
    assert calls == [[True]], "the end of the step is still waited for"
