"""The chaos benchmark's plans are valid, and its figures follow from what was found."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import chaos
from tests.unit.cli.test_chaos_command import REPORT
from trainflow.coordination.chaos.fitting import require_fit
from trainflow.coordination.chaos.invariants import Verdict
from trainflow.coordination.chaos.schedule import draw_faults


@pytest.mark.parametrize("system", chaos.MIXES)
def test_every_kind_of_a_mix_is_drawn_in_ten_minutes(system: str, tmp_path: Path):
    plan = chaos.make_plan(chaos.MIXES[system], for_s=600, seed=chaos.SEED)
    require_fit(plan, chaos.make_job(tmp_path, 100), {}, on_own_cluster=True)
    faults = draw_faults(plan)
    assert len(faults) == 30
    drawn = {(each.fault.kind, each.fault.target) for each in faults}
    assert drawn == {(each["kind"], each.get("target", "member")) for each in chaos.MIXES[system]}


def test_rows_say_whether_the_end_is_the_undisturbed_one():
    told: list[list[float]] = []
    for holds in (True, False, None):
        verdict = Verdict("it ends as an undisturbed run", holds, ())
        rows = chaos.campaign_rows("trainflow", replace(REPORT, verdicts=(verdict,)))
        told.append([row.value for row in rows if row.metric == "hash_equal"])
    assert told == [[1.0], [0.0], []]


def test_goodput_is_by_the_steps_before_and_after():
    assert REPORT.figures is not None
    verdict = Verdict("it ends as an undisturbed run", None, ())
    figures = replace(REPORT.figures, step_s=0.2, goodput_ratio=0.8)
    report = replace(REPORT, verdicts=(verdict,), figures=figures)
    alone = {row.metric: row.value for row in chaos.campaign_rows("trainflow", report)}
    assert alone["goodput"] == pytest.approx(0.8)
    assert "step_after_s" not in alone
    both = {row.metric: row.value for row in chaos.campaign_rows("trainflow", report, 0.22)}
    assert both["goodput"] == pytest.approx(0.84)
    assert both["step_s"] == pytest.approx(0.2)
    assert both["step_after_s"] == pytest.approx(0.22)
