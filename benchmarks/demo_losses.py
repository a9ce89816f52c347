"""What a run's own detector tells of the demo's losses and norms, with which nothing is wrong.

The demo's job trains from several seeds, longer than in the demo, so that rises and stalls are
judged as well. Nothing is made up: what counts are the events of the runs.

Process: the harness.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config import load_job
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.data.pack import PackOptions, pack_corpus

_JOB = Path(__file__).parents[1] / "jobs" / "pretrain_lm.yaml"
_TIMEOUT_S = 1800.0
_POLL_S = 0.2
_DEAF = frozenset({"monitoring_failed", "detector_off"})


@dataclass(frozen=True)
class DemoRuns:
    """Which runs there are to be.

    Attributes:
        seeds: of one each.
        num_steps: of each; rises and stalls are judged after 256.
        num_ranks: of each.
        global_batch_size: sequences a step; None: as in the demo.
        corpus_bytes: of text to train on; None: as in the demo.
    """

    seeds: Sequence[int] = (1, 2, 3)
    num_steps: int = 480
    num_ranks: int = 2
    global_batch_size: int | None = None
    corpus_bytes: int | None = None


QUICK_RUNS = DemoRuns((1,), 64, num_ranks=1, global_batch_size=2, corpus_bytes=400_000)


def count_false_alarms(runs: DemoRuns) -> Counter[str]:
    """Train from every seed; returns of how many anomalies events tell, by their kind."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINFLOW_HOME"] = f"{folder}/home"
        corpus = f"{folder}/corpus"
        pack_corpus("stdlib", corpus, options=PackOptions(max_bytes=runs.corpus_bytes))
        with LocalCluster.start(head_cpus=runs.num_ranks) as cluster:
            connect(cluster.address)
            try:
                for seed in runs.seeds:
                    found += find_told(_run(_make_job(runs, corpus, seed)), runs.num_steps)
            finally:
                disconnect()
    return found


def find_told(status: Mapping[str, Any], num_steps: int) -> Counter[str]:
    """Return of how many anomalies a run has told, by kind.

    Raises:
        RuntimeError: it has not looked at all of its steps.
    """
    kinds = {event["kind"] for event in status["events"]}
    steps = {line["step"] for line in status["steps"]}
    if status["state"] != "succeeded" or kinds & _DEAF or len(steps) != num_steps:
        trouble = f"{len(steps)} of {num_steps} steps, {sorted(kinds & _DEAF)}, {status['ending']}"
        raise RuntimeError(f"a run was not watched to its end: it {status['state']}: {trouble}")
    told = (event["data"] for event in status["events"] if event["kind"] == "anomaly")
    return Counter(data["anomaly"] for data in told)


def _make_job(runs: DemoRuns, corpus: str, seed: int) -> JobConfig:
    changes = {
        "name": "bench-anomalies",
        "args.export_dir": "null",
        "args.evaluate_every": runs.num_steps,
        "training.max_steps": runs.num_steps,
        "training.seed": seed,
        "data.url": corpus,
        "workers.target": runs.num_ranks,
        "workers.spares": 0,
    }
    if runs.global_batch_size is not None:
        changes["training.global_batch_size"] = runs.global_batch_size
    return load_job(_JOB, [f"{name}={value}" for name, value in changes.items()], env={})


def _run(job: JobConfig) -> dict[str, Any]:
    """Run a job to its end; returns its last status."""
    run = start_run(job)
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(_POLL_S)
    run.retire()
    return status
