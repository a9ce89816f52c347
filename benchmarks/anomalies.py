"""What the detector of anomalies finds, and what it tells of where nothing is wrong.

    make bench-anomalies           # or: python -m benchmarks.anomalies [--quick]

Runs are made up (`loss_traces`), from a seed. Recall is the share of runs with something wrong of
which it was told in time; false alarms are those in healthy runs, for each 10,000 steps, and those
in the others before anything is wrong with them. Beside them stands what real runs of the demo's
job tell of, with which nothing is wrong (`demo_losses`); a full run fails if that is anything.

Process: the harness.
"""

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from benchmarks.demo_losses import QUICK_RUNS, DemoRuns, count_false_alarms
from benchmarks.loss_traces import NUM_STEPS, WRONGS, Trace, make_healthy, make_wrong
from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order
from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.detector import (
    Anomaly,
    DetectorState,
    StepValues,
    observe,
)
from trainflow.monitoring.anomalies.kinds import AnomalyKind

_SYSTEM, _DEMO = "trainflow", "demo"
_PER = 10_000


def find_anomalies(trace: Trace, limits: AnomaliesConfig) -> list[tuple[StepValues, Anomaly]]:
    """Return what is told of a run, each with the values of the step in which it was."""
    state, found = DetectorState(), list[tuple[StepValues, Anomaly]]()
    for values in trace.values:
        verdict = observe(state, values, limits)
        state = verdict.state
        found += [(values, each) for each in verdict.begun]
    return found


@dataclass
class Tally:
    """What came of many runs.

    Attributes:
        false_alarms: by kind.
        num_healthy_steps: in which nothing was wrong.
        delays: by what was wrong, steps until it was told of; of those that were in time.
        num_wrong: by what was wrong, runs.
    """

    false_alarms: Counter[AnomalyKind] = field(default_factory=Counter[AnomalyKind])
    num_healthy_steps: int = 0
    delays: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    num_wrong: Counter[str] = field(default_factory=Counter[str])

    def add(self, trace: Trace, limits: AnomaliesConfig) -> None:
        """Take one run."""
        found = find_anomalies(trace, limits)
        healthy_until = trace.from_step if trace.wrong else len(trace.values) + 1
        self.num_healthy_steps += healthy_until - 1
        self.false_alarms.update(e.kind for values, e in found if values.step < healthy_until)
        if not trace.wrong:
            return
        told_by = WRONGS[trace.wrong].told_by
        told_at = [
            values.step
            for values, each in found
            if each.kind in told_by and trace.from_step <= values.step <= trace.until_step
        ]
        self.num_wrong[trace.wrong] += 1
        if told_at:
            self.delays.setdefault(trace.wrong, []).append(told_at[0] - trace.from_step)

    def rows(self) -> list[Row]:
        """Return the figures."""
        rows: list[Row] = []
        for wrong, number in self.num_wrong.items():
            delays = self.delays.get(wrong, [])
            rows.append(Row(_SYSTEM, f"recall_{wrong}", len(delays) / number, "ratio"))
            if delays:
                rows.append(Row(_SYSTEM, f"delay_{wrong}", median(delays), "steps, median"))
        for kind in AnomalyKind:
            rate = self.false_alarms[kind] * _PER / self.num_healthy_steps
            rows.append(Row(_SYSTEM, f"false_alarms_{kind}", rate, f"per {_PER} steps"))
        return rows


def measure_cost(trace: Trace, limits: AnomaliesConfig) -> float:
    """Return the CPU-seconds that a step takes."""
    began_s = time.process_time()
    find_anomalies(trace, limits)
    return (time.process_time() - began_s) / len(trace.values)


def tally(num_healthy: int, num_wrong: int, seed: int) -> Tally:
    """Make runs and see what is told of them.

    Args:
        num_healthy: runs with which nothing is wrong.
        num_wrong: runs of each kind with which something is.
        seed: of all of them.
    """
    rng, limits, found = random.Random(seed), AnomaliesConfig(), Tally()
    for _ in range(num_healthy):
        found.add(make_healthy(rng), limits)
    for wrong in WRONGS:
        for _ in range(num_wrong):
            found.add(make_wrong(rng, wrong), limits)
    return found


def demo_rows(runs: DemoRuns, told: Counter[str]) -> list[Row]:
    """Return what runs of the demo's job have told of, in all of their steps."""
    num_steps = len(runs.seeds) * runs.num_steps
    rows = [Row(_DEMO, "steps", num_steps, f"steps, from {len(runs.seeds)} seeds")]
    rows += [Row(_DEMO, f"false_alarms_{kind}", told[kind], "in all") for kind in AnomalyKind]
    return [*rows, Row(_DEMO, "false_alarms", told.total(), "in all")]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    num_healthy, num_wrong = (3, 1) if arguments.quick else (200, 50)
    runs = QUICK_RUNS if arguments.quick else DemoRuns()
    told = count_false_alarms(runs)
    found = tally(num_healthy, num_wrong, arguments.seed)
    rng = random.Random(arguments.seed)
    cost_s = measure_cost(make_healthy(rng), AnomaliesConfig())
    rows = [*found.rows(), Row(_SYSTEM, "cost_a_step_s", cost_s, "CPU-s")]
    rows += demo_rows(runs, told)
    conditions = {
        "healthy_runs": num_healthy,
        "runs_of_each_wrong": num_wrong,
        "steps_a_run": NUM_STEPS,
        "healthy_steps": found.num_healthy_steps,
        "limits": AnomaliesConfig().model_dump(),
        "seed": arguments.seed,
        "demo_seeds": [*runs.seeds],
        "demo_ranks": runs.num_ranks,
    }
    publish("anomalies", conditions, rows, quick=arguments.quick)
    if told and not arguments.quick:
        raise SystemExit(f"runs of the demo, with which nothing is wrong, told of {dict(told)}")


if __name__ == "__main__":
    main()
