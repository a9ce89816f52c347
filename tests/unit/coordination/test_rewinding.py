"""A run that goes back for its loss: what is decided, what is planned, and what counts after it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_anomaly_watch import Run as WatchedRun
from tests.unit.coordination.test_kept_state import (
    SPEC,
    FakeCheckpoints,
    FakeNodes,
    Scene,
    address,
    version,
)
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import StepReport
from trainflow.coordination.messages import Holding
from trainflow.coordination.rewind_history import Rewind
from trainflow.coordination.rewinding import Rewinding
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import WHOLE, EpochId, MemberReport, RecoveryPlan, StoredState, Version
from trainflow.errors import StoreError

SAMPLES = 10
JOB = make_job(
    checkpoint={"url": "/store", "every_steps": 10},
    monitoring={"anomalies": {"action": "rewind", "max_rewinds": 1, "rewind_margin": 0}},
)
HOLDERS = [MemberReport("w0", version(130)), MemberReport("w1", version(130))]


class Epochs:
    """Notes that members are to pause; they may, unless a test says otherwise."""

    def __init__(self) -> None:
        self.num_asked = 0

    def pause(self) -> bool:
        self.num_asked += 1
        return True


class Stored:
    def __init__(self, *steps: int):
        self.steps = steps


class Run(WatchedRun):
    """A run that is watched, and may go back."""

    def __init__(self, directory: Path, job: Any = JOB, stored: tuple[int, ...] = (100, 110)):
        self._job, self._stored = job, stored
        super().__init__(directory)

    def open(self) -> None:
        super().open()
        self.epochs = Epochs()
        self.rewinding = Rewinding(self._job, self.record, self.epochs, Stored(*self._stored))

    def step(self, step: int, **values: Any) -> None:
        super().step(step, consumed_samples=SAMPLES * step, **values)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record.events_since(0)]


def test_after_a_spike_it_goes_back_and_passes_over_what_led_there(tmp_path: Path):
    run = Run(tmp_path)
    run.go(120)
    assert run.kinds() == []
    run.step(121, loss=8.0)
    assert run.kinds() == ["anomaly", "rewind"]
    event = run.last()
    assert event["data"] == {"to_step": 110, "position": 121 * SAMPLES}
    assert event["text"].startswith(
        "the run goes back to the checkpoint of step 110, and passes over the samples up to "
        "position 1210: step 121: the loss 8 is"
    )
    assert run.epochs.num_asked == 1


def test_it_passes_over_the_margin_too(tmp_path: Path):
    limits = JOB.monitoring.anomalies.model_copy(update={"rewind_margin": 3})
    monitoring = JOB.monitoring.model_copy(update={"anomalies": limits})
    run = Run(tmp_path, job=JOB.model_copy(update={"monitoring": monitoring}))
    run.go(120)
    run.step(121, loss=8.0)
    position = 121 * SAMPLES + 3 * JOB.training.global_batch_size
    assert run.last()["data"] == {"to_step": 110, "position": position}


def find(run: Run, step: int, *kinds: str) -> None:
    """Take a step, of which something tells these anomalies."""

    class Watch:
        def on_event(self, event: Any) -> None: ...

        def on_step(self, report: StepReport) -> None:
            for kind in kinds:
                run.record.add_event("anomaly", kind, anomaly=kind, since_step=report.step)

    run.open()
    run.record = RunRecord(run.record.directory, FakeClock())
    run.record.follow(Watch())
    run.rewinding = Rewinding(JOB, run.record, run.epochs, Stored(100, 500, 600, 650))
    run.step(step, loss=8.0)


@pytest.mark.parametrize("kinds", [("loss_spike", "loss_rise"), ("loss_rise", "loss_spike")])
def test_of_several_in_a_step_what_began_first_counts(tmp_path: Path, kinds: tuple[str, str]):
    run = Run(tmp_path)
    find(run, 672, *kinds)
    assert run.kinds() == ["anomaly", "anomaly", "rewind"]
    assert run.last()["data"] == {"to_step": 500, "position": 672 * SAMPLES}
    assert run.last()["text"].endswith(f": {kinds[0]}; {kinds[1]}")


def test_what_is_void_before_the_next_step_is_no_reason(tmp_path: Path):
    run = Run(tmp_path)
    run.go(120)
    run.record.add_event("anomaly", "", anomaly="loss_spike", since_step=120)
    run.record.add_event("anomaly_over", "", anomaly="loss_spike", since_step=120, cause="void")
    run.go(121)
    assert run.kinds() == ["anomaly", "anomaly_over"]


def test_it_is_asked_for_again_until_it_is_done(tmp_path: Path):
    run = Run(tmp_path)
    run.rewinding.tick()
    assert run.epochs.num_asked == 0
    run.go(120)
    run.step(121, loss=8.0)
    run.go(140)
    run.step(141, loss=8.0)
    run.rewinding.tick()
    assert run.epochs.num_asked == 2
    assert [kind for kind in run.kinds() if kind != "anomaly_over"] == [
        "anomaly",
        "rewind",
        "anomaly",
    ]
    run.record.add_event("rewound", "", to_step=110, position=1210, steps_lost=3)
    run.rewinding.tick()
    assert run.epochs.num_asked == 2


def test_a_new_coordinator_goes_on_with_what_is_still_to_be_done(tmp_path: Path):
    run = Run(tmp_path)
    run.go(120)
    run.step(121, loss=8.0)
    run.open()
    assert run.record.rewinds.pending == Rewind(110, 1210)
    run.rewinding.tick()
    assert run.epochs.num_asked == 1


def test_as_often_as_it_may_and_then_it_is_told(tmp_path: Path):
    run = Run(tmp_path)
    run.record.add_event("rewind", "", to_step=20, position=400)
    run.record.add_event("rewound", "", to_step=20, position=400, steps_lost=3)
    run.go(120)
    run.step(121, loss=8.0)
    assert run.kinds()[-2:] == ["anomaly", "rewind_refused"]
    assert "max_rewinds = 1" in run.last()["text"]
    assert run.epochs.num_asked == 0


def test_without_a_checkpoint_before_it_it_is_told(tmp_path: Path):
    run = Run(tmp_path, stored=(121,))
    run.go(120)
    run.step(121, loss=8.0)
    assert "no checkpoint before step 119" in run.last()["text"]


def test_a_job_that_does_not_ask_for_it_goes_on(tmp_path: Path):
    run = Run(tmp_path, job=make_job())
    run.go(120)
    run.step(121, loss=8.0)
    assert run.kinds() == ["anomaly"]


# What is planned


class Checkpoints(FakeCheckpoints):
    """Goes back as it is asked to, or fails as a test says."""

    def __init__(self, *steps: int):
        super().__init__(*steps)
        self.gone_back: list[int] = []
        self.error: Exception | None = None

    async def go_back(self, step: int) -> StoredState | None:
        self.gone_back.append(step)
        if self.error is not None:
            raise self.error
        self.stored = [each for each in self.stored if each.step <= step]
        return self.newest


def asked(tmp_path: Path, checkpoints: Checkpoints, **newest: int | None) -> Scene:
    """A run at step 130 that is to go back to step 110."""
    scene = Scene(tmp_path, FakeNodes(**newest), checkpoints)
    for step in range(1, 131):
        scene.record.add_step(replace(STEP, step=step, epoch=EpochId(1, 1)))
    scene.record.add_event("rewind", "", to_step=110, position=1210)
    return scene


def go_back(scene: Scene, plan: RecoveryPlan, counter: int = 5) -> None:
    """Begin the epoch that was planned, as it is recorded."""
    scene.kept.on_formed(plan, {})
    scene.background.finish()
    epoch = EpochId(1, counter)
    scene.record.begin_after(plan.base.step, str(plan.stored), epoch)
    scene.record.add_event("epoch", "", epoch=str(epoch), members=[], base=str(plan.base))


def test_all_go_back_to_the_checkpoint_whatever_they_hold(tmp_path: Path):
    checkpoints = Checkpoints(100, 110, 120)
    scene = asked(tmp_path, checkpoints, a=130)
    plan = scene.plan(HOLDERS, 130)
    assert plan.stored == StoredState("/store", 110)
    assert plan.base == plan.stored.version
    assert (plan.sources, plan.replay_tail, plan.position) == ({1: 0}, False, 1210)
    assert checkpoints.gone_back == [110]
    scene.kept.on_formed(plan, {})
    (done,) = [e for e in scene.record.events_since(0) if e["kind"] == "rewound"]
    assert done["data"] == {"to_step": 110, "position": 1210, "steps_lost": 20}
    assert done["text"].endswith("the samples from position 1210 on: 20 steps are void")
    assert scene.record.rewinds.pending is None
    assert checkpoints.begun == (SPEC.epoch, 110)
    scene.background.finish()


def test_who_is_sharded_reads_its_own_part(tmp_path: Path):
    scene = asked(tmp_path, Checkpoints(110))
    scene.memory.is_sharded = True
    plan = scene.plan(HOLDERS, 130)
    assert (plan.sources, plan.stored, plan.position) == ({}, StoredState("/store", 110), 1210)


@pytest.mark.parametrize("trouble", ["store", "nothing there", "finished"])
def test_what_can_t_be_done_is_given_up_and_told_and_the_run_goes_on(tmp_path: Path, trouble: str):
    checkpoints = Checkpoints(*([] if trouble == "nothing there" else [110]))
    checkpoints.error = StoreError("it is down") if trouble == "store" else None
    scene = asked(tmp_path, checkpoints)
    is_over = trouble == "finished"
    reports = [replace(each, finished=is_over, tail_done=True) for each in HOLDERS]
    plan = scene.plan(reports, 130)
    assert (plan.base, plan.stored, plan.position) == (version(130), None, None)
    (told,) = scene.events("rewind_given_up")
    why = {"store": "it is down", "nothing there": "no checkpoint of step 110", "finished": "done"}
    assert why[trouble] in told
    assert scene.record.rewinds.pending is None
    scene.kept.on_formed(plan, {})
    assert scene.events("rewound") == []
    scene.background.finish()


def test_an_epoch_that_was_planned_before_does_not_do_it(tmp_path: Path):
    scene = Scene(tmp_path, FakeNodes(), Checkpoints(110))
    plan = scene.plan(HOLDERS, 130)
    scene.record.add_event("rewind", "", to_step=110, position=1210)
    scene.kept.on_formed(plan, {})
    scene.background.finish()
    assert scene.events("rewound") == []
    assert scene.record.rewinds.pending == Rewind(110, 1210)


# What counts afterwards


@pytest.fixture
def rewound(tmp_path: Path) -> Scene:
    """A run that has gone back to step 110, and has done two steps since."""
    scene = asked(tmp_path, Checkpoints(100, 110, 120), a=130)
    go_back(scene, scene.plan(HOLDERS, 130))
    for step in (111, 112):
        scene.record.add_step(replace(STEP, step=step, epoch=EpochId(1, 5)))
    return scene


def test_a_spare_that_still_holds_a_void_state_counts_for_nothing(rewound: Scene):
    newest = Version(112, EpochId(1, 5))
    plan = rewound.plan([MemberReport("w0", newest), MemberReport("w1", version(130))], 112)
    assert (plan.base, plan.sources, plan.stored, plan.position) == (newest, {1: 0}, None, None)


def test_nor_does_a_snapshot_that_is_left_of_it_and_the_checkpoint_has_its_place(rewound: Scene):
    plan = rewound.plan([MemberReport("w0", None), MemberReport("w1", None)], 112)
    assert plan.stored == StoredState("/store", 110)
    assert plan.position == 1210


def test_shards_that_are_left_of_it_count_for_nothing_either(rewound: Scene):
    newest = Version(112, EpochId(1, 5))
    nodes: Any = rewound.memory._nodes
    held = ((version(130), WHOLE), (version(110), WHOLE), (newest, WHOLE))
    nodes.holdings["a"] = Holding("a", address("a"), None, held)
    found = asyncio.run(rewound.memory.find_shards(112, lambda _: newest))
    assert found.versions == {version(110), newest}


def test_a_checkpoint_of_later_steps_has_a_place_of_its_own(rewound: Scene):
    checkpoints: Any = rewound.kept.checkpoints
    checkpoints.stored.append(StoredState("/store", 112))
    plan = rewound.plan([MemberReport("w0", None), MemberReport("w1", None)], 112)
    assert plan.stored == StoredState("/store", 112)
    assert plan.position is None


def test_steps_of_checkpoints_that_are_gone_are_not_made(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    for step in (100, 110, 120, 130):
        record.add_event("checkpoint", "", step=step)
    record.add_event("rewound", "", to_step=110, position=1210, steps_lost=20)
    record.add_event("checkpoint", "", step=120)
    for each in (record, RunRecord(tmp_path, FakeClock())):
        assert each.steps_of("checkpoint") == [100, 110, 120]


def test_the_position_is_that_of_the_step_that_was_told_of(tmp_path: Path):
    run = Run(tmp_path)
    run.go(120)
    lines = run.record.steps_since(118)
    assert [line["consumed_samples"] for line in lines] == [1190, 1200]
