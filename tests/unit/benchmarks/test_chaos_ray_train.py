"""TrainFlow and Ray Train bear the same kills, and what each loses is told as a ratio."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import chaos_ray_train
from benchmarks.chaos import campaign_rows, make_plan
from benchmarks.peers import ray_train
from benchmarks.peers.ray_train import Goodput, WorkerGroup
from benchmarks.report import Row
from tests.unit.cli.test_chaos_command import REPORT
from trainflow.coordination.chaos.invariants import Verdict
from trainflow.coordination.chaos.schedule import draw_faults

_FOUND = Goodput(wall_s=100, num_steps=500, step_s=0.08, step_after_s=0.12, num_kills=3)


def test_ray_train_is_killed_when_trainflow_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    killed: list[tuple[float, float]] = []

    def measure(
        schedule: Sequence[tuple[float, float]], for_s: float, _: Path, group: WorkerGroup
    ) -> Goodput:
        assert (for_s, group.num_workers) == (100, 4)
        killed.extend(schedule)
        return _FOUND

    monkeypatch.setattr(ray_train, "measure_goodput", measure)
    chaos_ray_train.measure_ray_train(100, 7, tmp_path)
    ours = draw_faults(make_plan(chaos_ray_train.MEMBERS, 200, 7))
    assert {(each.fault.kind, each.fault.target) for each in ours} == {("kill", "member")}
    assert killed == [(each.at_s, each.pick) for each in ours][: len(killed)]
    assert [at_s for at_s, _ in killed] == [20, 40, 60, 80, 100]


def test_time_lost_is_a_ratio_to_trainflow_s():
    ours = [Row("trainflow_members", "goodput", 0.9, "1")]
    rows = {row.metric: row.value for row in chaos_ray_train.ray_rows(_FOUND, ours)}
    assert rows["goodput"] == pytest.approx(0.5)
    assert rows["time_lost_to_trainflow_ratio"] == pytest.approx(5.0)
    assert "time_lost_to_trainflow_ratio" not in {
        row.metric for row in chaos_ray_train.ray_rows(_FOUND, [])
    }


@pytest.mark.parametrize(("holds", "goodput"), [(True, 0.96), (False, None)])
def test_goodput_is_of_runs_that_end(*, holds: bool, goodput: float | None):
    assert REPORT.figures is not None
    verdict = Verdict("it ends", holds, ())
    same = Verdict("it ends as an undisturbed run", None, ())
    figures = replace(REPORT.figures, wall_s=50.0, step_s=None, goodput_ratio=None)
    bare = replace(REPORT, verdicts=(verdict, same), figures=figures)
    report = chaos_ray_train.with_step(bare, 201, 0.2)
    told = {row.metric: row.value for row in campaign_rows("trainflow_members", report, 0.28)}
    assert told.get("goodput") == (None if goodput is None else pytest.approx(goodput))
