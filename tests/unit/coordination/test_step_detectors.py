"""What is looked for in the times of steps, and that one detector's fault is not another's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, guard_of
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.network_watch import NetworkWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.step_detectors import StepDetectors
from trainflow.coordination.straggler_watch import StragglerWatch

WATCHES = {"stragglers": StragglerWatch, "network": NetworkWatch}


@pytest.mark.parametrize("broken", WATCHES)
def test_one_that_fails_is_shown_and_the_other_looks_on(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, broken: str
):
    asked: list[str] = []

    def fail(_watch: object, _report: object) -> None:
        asked.append("broken")
        raise ZeroDivisionError

    (other,) = WATCHES.keys() - {broken}
    monkeypatch.setattr(WATCHES[broken], "on_step", fail)
    monkeypatch.setattr(WATCHES[other], "on_step", lambda *_: asked.append("well"))
    control: Any = SimpleNamespace(members=(), epoch=STEP.epoch)
    parts: Any = (FakePool(), control, None, record, guard_of(record))
    detectors = StepDetectors(make_job(), *parts)
    assert detectors.describe() == {"stragglers": [], "slow_network": [], "detectors_off": []}
    for _ in range(3):
        detectors.on_step(STEP)
    assert sorted(asked) == ["broken", "well", "well", "well"]
    (off,) = detectors.describe()["detectors_off"]
    assert off["detector"] == broken


def test_how_long_members_compute_is_noted_whatever_detectors_do(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    for watch in WATCHES.values():
        monkeypatch.setattr(watch, "on_step", lambda *_: 1 / 0)
    pool: Any = FakePool([FakeWorker("slot0-1.0", None)])
    control: Any = SimpleNamespace(members=("slot0-1.0",), epoch=STEP.epoch)
    parts: Any = (pool, control, None, record, guard_of(record))
    StepDetectors(make_job(), *parts).on_step(replace(STEP, compute_by_rank=(0.25,)))
    assert pool.entries["slot0-1.0"].compute_s == 0.25
