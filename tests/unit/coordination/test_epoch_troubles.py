"""What is heard of an epoch late counts only for that epoch."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import Method, describe, settle, until
from tests.unit.coordination.test_epoch_control import (
    FRESH,
    Scene,
    note_calls_to_form,
    parked,
    seen,
)
from trainflow.computation.reports import RanksDiffer
from trainflow.coordination.messages import WorkerDescription
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, MemberReport, Phase


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


@pytest.mark.parametrize("finished", [False, True])
def test_who_has_waited_since_before_its_epoch_was_taken_over_was_never_released(
    tmp_path: Path, *, finished: bool
):
    """Its coordinator died amid its calls to begin, and it was slow to tell the next one so."""

    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        spec = EpochSpec(EpochId(1, 4), scene.ids, "127.0.0.1", 1)
        scene.control.incarnation = 2
        scene.control.take_over(spec, intact=True)
        scene.control.open()
        standing = MemberReport(scene.ids[1], INITIAL_VERSION, finished=finished)
        told = {"spec": spec, "has_begun": finished, "standing": standing}
        scene.workers[1].description = describe(scene.ids[1], **told)
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 60.0)})
        await settle()
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    text = f"{scene.ids[1]} has parked, and no epoch was being formed"
    assert scene.superior.failures == ([] if finished else [text])
    assert scene.control.epoch == (EpochId(1, 4) if finished else EpochId(2, 1))


def test_one_that_has_parked_and_is_too_busy_to_say_why_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It pauses with the others, whose report has yet to come."""
    monkeypatch.setattr("trainflow.coordination.epoch_troubles._ANSWER_WITHIN_S", 0.01)

    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        asked = asyncio.Event()

        async def say_nothing() -> WorkerDescription:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        scene.workers[1].describe = Method(say_nothing)
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await asked.wait()
        await until(lambda: scene.control.troubles._asking is None)
        assert scene.control.is_whole
        description = parked(scene, 1)

        async def answer() -> WorkerDescription:
            return description

        scene.workers[1].describe = Method(answer)
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 3.5)})
        await until(lambda: scene.control.epoch == EpochId(1, 2))
        scene.control.close()
        return scene

    assert asyncio.run(main()).superior.failures == []


DIFFERENCE = RanksDiffer(4, EpochId(1, 1), (0, 1), in_spot_check=False)
EXPLAINED = (
    "gradients differ on ranks [0, 1] after they were summed, so step 4 is done again; no majority "
    "tells on which rank they are wrong, so nobody loses its rank"
)


def test_of_gradients_that_differ_it_is_said_who_could_be_named():
    assert DIFFERENCE.explain(2) == EXPLAINED
    named = replace(DIFFERENCE, ranks=(1,), in_spot_check=True)
    assert named.explain(3) == (
        "gradients differ on ranks [1] of a microbatch that all computed, so step 4 is done again"
    )


@pytest.mark.parametrize("others_first", [True, False])
def test_an_epoch_whose_gradients_differ_is_not_said_to_have_lost_a_collective(
    tmp_path: Path, *, others_first: bool
):
    """Who has yet to see it sees that the others are gone."""
    told = [(1, "connection reset"), (0, DIFFERENCE.explain(2))]

    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        scene.control.open()
        await settle()
        for rank, reason in told if others_first else told[::-1]:
            scene.control.troubles.on_group_failed(scene.ids[rank], EpochId(1, 1), reason)
        await until(lambda: scene.superior.failures)
        scene.control.close()
        return scene

    assert asyncio.run(main()).superior.failures == [EXPLAINED]


def test_one_that_has_parked_for_them_says_so_too(tmp_path: Path):
    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.workers[1].description = replace(parked(scene, 1), failure=EXPLAINED)
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await until(lambda: scene.superior.failures)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.superior.failures == [f"{scene.ids[1]} has parked, as {EXPLAINED}"]


@pytest.mark.parametrize("by", ["a message", "a question"])
def test_an_error_as_an_epoch_is_broken_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
):
    async def main() -> Scene:
        scene = Scene(tmp_path, FRESH)
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.workers[1].description = parked(scene, 1, failure="connection reset")
        monkeypatch.setattr(scene.superior, "spend", lambda _: 1 / 0)
        if by == "a message":
            scene.control.troubles.on_group_failed(scene.ids[1], EpochId(1, 1), "reset")
        else:
            scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await until(lambda: scene.superior.endings)
        return scene

    (ending,) = asyncio.run(main()).superior.endings
    assert "ZeroDivisionError" in ending.reason
