"""TrainFlow's recovery of a sharded model, and the same job once more with nothing in its way.

    python -m benchmarks.trainflow_sharded_recovery --kills 3

Process: the harness; both runs are on a Ray cluster of their own.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.samples import RecoverySample, summarize
from benchmarks.sharded_recovery_job import differing_steps, last_step, read_digests
from benchmarks.trainflow_recovery import (
    Scenario,
    Subject,
    break_members,
    own_ground,
    wait_for_status,
)
from benchmarks.workload import LARGE, SMALL, Size
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run

_UNENDING = 100_000
_STEPS_AFTER_RECOVERY = 2
_WHOLE_RUN_WITHIN_S = 900.0


@dataclass(frozen=True)
class Layout:
    """How a model is spread over ranks.

    Attributes:
        name: what a measured system with it is called.
        parallel: the job's section.
        num_ranks: that train; one more stands by.
    """

    name: str
    parallel: dict[str, Any] = field(default_factory=dict[str, Any])
    num_ranks: int = 4

    @property
    def scenario(self) -> Scenario:
        """What is done to a run of it."""
        return Scenario(num_spares=1, num_members=self.num_ranks)


FSDP = Layout("trainflow", {"mode": "fsdp"})
HSDP = Layout("trainflow_hsdp", {"mode": "hsdp", "shard": 2})
ZERO1 = Layout("trainflow_zero1", {"mode": "zero1"}, num_ranks=3)
LAYOUTS = (FSDP, HSDP, ZERO1)


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        samples: one a kill.
        num_steps: how many steps it committed; the undisturbed run as many.
        differing_steps: those after which a rank's weights weren't the undisturbed run's, to the
            bit.
    """

    samples: list[RecoverySample]
    num_steps: int
    differing_steps: list[int]


def make_job(
    log_dir: Path, size: Size, layout: Layout, *, num_spares: int = 0, max_steps: int = _UNENDING
) -> JobConfig:
    """Describe the run: a sharded model, one sequence a rank."""
    num_ranks = layout.num_ranks
    return JobConfig.model_validate(
        {
            "name": "bench-sharded-recovery",
            "entrypoint": "benchmarks.sharded_recovery_job:train",
            "args": {"log_dir": str(log_dir), "size": asdict(size)},
            "training": {
                "max_steps": max_steps,
                "global_batch_size": num_ranks,
                "microbatch_size": 1,
                "deterministic": True,
            },
            "parallel": layout.parallel,
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": num_ranks, "target": num_ranks, "spares": num_spares},
            "failures": {"max_failures": None},
        }
    )


def measure(
    num_kills: int, seed: int, work_dir: Path, size: Size, layout: Layout = FSDP
) -> Outcome:
    """Kill a rank ``num_kills`` times, then take as many steps without, and compare the weights.

    Raises:
        TimeoutError: a run did not get on in time.
    """
    disturbed, undisturbed = work_dir / "disturbed", work_dir / "undisturbed"
    disturbed.mkdir(parents=True)
    undisturbed.mkdir()
    scenario = layout.scenario
    with own_ground(work_dir / "home", scenario) as ground:
        run = ground.start(make_job(disturbed, size, layout, num_spares=scenario.num_spares))
        samples = break_members(Subject(run, ground.cluster, disturbed, scenario), num_kills, seed)
        _stop_soon(run)
        digests = read_digests(disturbed)
        num_steps = last_step(digests, layout.num_ranks)
        _wait_for_end(ground.start(make_job(undisturbed, size, layout, max_steps=num_steps)))
    return Outcome(samples, num_steps, differing_steps(digests, read_digests(undisturbed)))


def _stop_soon(run: Run) -> None:
    """Stop a run at a boundary a few steps from now, and wait until it has."""
    until = run.status()["step"] + _STEPS_AFTER_RECOVERY
    wait_for_status(run, "go on", lambda status: status["step"] >= until)
    run.stop()
    _wait_for_end(run)


def _wait_for_end(run: Run) -> None:
    """Wait until a run has ended as it should, and let its coordinator go."""
    wait_for_status(
        run,
        "end",
        lambda status: status["state"] in {"succeeded", "stopped"},
        timeout_s=_WHOLE_RUN_WITHIN_S,
    )
    run.retire()


def main() -> None:
    """Measure alone and print the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="31 MB of state, not 507")
    by_name = {layout.name: layout for layout in LAYOUTS}
    parser.add_argument("--layout", choices=sorted(by_name), default=FSDP.name)
    arguments = parser.parse_args()
    layout = by_name[arguments.layout]
    size = SMALL if arguments.small else LARGE
    with tempfile.TemporaryDirectory(prefix="sharded-", ignore_cleanup_errors=True) as directory:
        outcome = measure(arguments.kills, arguments.seed, Path(directory), size, layout)
    print(summarize(layout.name, outcome.samples))
    print(f"{outcome.num_steps} steps, other weights after {outcome.differing_steps}")


if __name__ == "__main__":
    main()
