"""What compressing gradients does to what a model learns.

    make bench-parity              # or: python -m benchmarks.parity [--quick]

Each compression trains the demo's model from the same seeds over the same samples, two ranks; the
figure is the loss on held-out text after the last step. Beside it stands what changing the seed
alone does without compression. Losses of single seeds are compared in pairs.

Process: the harness.
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.data.pack import pack_corpus

SYSTEMS: dict[str, dict[str, Any]] = {
    "fp32": {"compression": "none"},
    "bf16": {"compression": "bf16"},
    "int8": {"compression": "int8"},
    "fp8": {"compression": "fp8"},
    "int4": {"compression": "int4"},
    "int4_fed_back": {"compression": "int4", "error_feedback": True},
    "top_k": {"compression": "top_k", "warmup_steps": 30},
    "power_sgd": {"compression": "power_sgd", "warmup_steps": 30},
}
SEEDS = (1, 2, 3)
NUM_STEPS = 300
_NUM_RANKS = 2
_TIMEOUT_S = 900.0
_POLL_S = 0.2


def make_job(corpus: Path, system: str, seed: int, num_steps: int) -> JobConfig:
    """Describe one run."""
    return JobConfig.model_validate(
        {
            "name": "bench-parity",
            "entrypoint": "jobs.pretrain_lm:train",
            "args": {"evaluate_every": num_steps},
            "training": {
                "max_steps": num_steps,
                "global_batch_size": 2 * _NUM_RANKS,
                "microbatch_size": 2,
                "seed": seed,
            },
            "data": {"url": str(corpus)},
            "workers": {"minimum": _NUM_RANKS, "target": _NUM_RANKS},
            "communication": SYSTEMS[system],
            "snapshot": {"every_steps": None},
        }
    )


def held_out_loss(job: JobConfig) -> float:
    """Train to the end; returns the loss on the validation data."""
    run = start_run(job)
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(_POLL_S)
    run.retire()
    if status["state"] != "succeeded":
        raise RuntimeError(f"a run ended as {status['state']}: {status['ending']}")
    values = [event["data"]["value"] for event in status["events"] if event["kind"] == "evaluated"]
    return float(values[-1])


def measure(systems: list[str], seeds: tuple[int, ...], num_steps: int) -> list[Row]:
    """Train every system from every seed."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINFLOW_HOME"] = f"{folder}/home"
        corpus = Path(folder) / "corpus"
        pack_corpus("stdlib", str(corpus))
        losses: dict[str, list[float]] = {system: [] for system in systems}
        with LocalCluster.start(head_cpus=_NUM_RANKS) as cluster:
            connect(cluster.address)
            try:
                for seed in seeds:
                    for system in systems:
                        loss = held_out_loss(make_job(corpus, system, seed, num_steps))
                        losses[system].append(loss)
                        print(f"seed {seed} {system:>14}: {loss:.4f}", flush=True)
            finally:
                disconnect()
    return [row for system in systems for row in _rows(system, losses[system], losses["fp32"])]


def _rows(system: str, losses: list[float], reference: list[float]) -> list[Row]:
    differences = [own - other for own, other in zip(losses, reference, strict=True)]
    rows = [
        Row(system, "held_out_loss", mean(losses), "nats a token"),
        Row(system, "difference", mean(differences), "nats a token, to fp32 from the same seed"),
    ]
    if len(losses) > 1:
        rows.append(Row(system, "sd_over_seeds", stdev(losses), "nats a token"))
    return rows


@ending_in_order()
def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two systems, one seed, ten steps")
    quick: bool = parser.parse_args().quick
    rows = measure(["fp32", "int8"], (1,), 10) if quick else measure([*SYSTEMS], SEEDS, NUM_STEPS)
    num_steps = 10 if quick else NUM_STEPS
    publish("parity", {"num_steps": num_steps, "num_ranks": _NUM_RANKS}, rows, quick=quick)


if __name__ == "__main__":
    main()
