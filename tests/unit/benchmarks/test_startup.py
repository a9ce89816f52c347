"""What a run's events say becomes figures."""

from typing import Any

from benchmarks.startup import Start, to_rows


def make_startup(took_s: float, imports_s: float) -> dict[str, Any]:
    share = {"phase": "imports", "took_s": imports_s, "worker": "slot0-1.0"}
    return {"kind": "startup", "data": {"took_s": took_s, "phases": {"imports": share}}}


def test_the_coordinators_own_start_is_part_of_a_run():
    start = Start.of_run(make_startup(7.0, 4.0), submission_s=0.5)
    assert start == Start(7.5, {"submission": 0.5, "imports": 4.0})


def test_a_figure_is_the_median_and_a_phase_that_some_lack_counts_as_none():
    starts = [Start(1.0, {"imports": 1.0}), Start(5.0, {"imports": 3.0, "kernels": 2.0})]
    rows = {(row.system, row.metric): row.value for row in to_rows({"trainflow": starts})}
    assert rows == {
        ("trainflow", "took_s"): 3.0,
        ("trainflow", "took_max_s"): 5.0,
        ("trainflow", "imports_s"): 2.0,
        ("trainflow", "kernels_s"): 1.0,
    }
