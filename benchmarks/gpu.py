"""What TrainFlow costs and does on a GPU: steps beside a plain loop, kernels, NCCL, a death.

    make bench-gpu                 # or: python -m benchmarks.gpu [--quick]; needs a GPU of NVIDIA's

One GPU and one rank. A Llama of 239M parameters trains in bf16, compiled by `torch.compile`, under
TrainFlow and in a plain loop of PyTorch by turns, a block of steps each: without copies of its
state, and with one after every step, which goes to the host's memory on a stream of its own. Then
the rank is killed at random phases of its step, and a spare on the same GPU takes its place. The
kernels of compression are timed beside a copy, and an NCCL group of one rank is aborted and made
anew. The full run takes some five minutes.

Process: the harness.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.distributed import HashStore, PrefixStore

from benchmarks import gpu_job
from benchmarks.gpu_job import Args
from benchmarks.kernel_rates import measure_kernels
from benchmarks.peers.events import EventTail
from benchmarks.peers.killing import Harness, KillPlan, execute_kills
from benchmarks.peers.samples import RecoverySample, summarize, to_samples
from benchmarks.report import Row, interval_of_median, publish
from benchmarks.trainflow_recovery import find_recovered, wait_for_status
from benchmarks.turns import block_medians
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.nccl import NcclConnector
from trainflow.computation.model_work import find_shape
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.errors import TrainFlowError
from trainflow.monitoring.flops import count_model_flops
from trainflow.monitoring.peaks import find_peak

PARTS = ("kernels", "nccl", "every_step", "deaths", "steps")
QUICK_PARTS = ("kernels", "nccl", "every_step")
NOT_COMPILED_YET_S = 300.0
_SHARE_OF_GPU = 0.4  # of a member, and of its spare; the plain loop takes what it needs
_TIMEOUT_S = 240.0
_NCCL_ELEMENTS = 1024 * 1024
_CODE_BYTES = {"int8": 1.0, "int4": 0.5, "fp8": 1.0}


def make_job(args: Args, entrypoint: str, *, spares: int, every_steps: int | None) -> JobConfig:
    """Describe a run of one rank on a part of the GPU."""
    is_endless = args.num_blocks == 0
    return JobConfig.model_validate(
        {
            "name": "bench-gpu",
            "entrypoint": f"benchmarks.gpu_job:{entrypoint}",
            "args": args.model_dump(mode="json"),
            "training": {
                "max_steps": 100_000 if is_endless else args.num_blocks * args.steps_a_block,
                "global_batch_size": args.microbatches * gpu_job.MICROBATCH,
                "microbatch_size": gpu_job.MICROBATCH,
                "precision": "bf16",
            },
            "data": {"dataset": "benchmarks.gpu_job:open_dataset"},
            "workers": {
                "minimum": 1,
                "target": 1,
                "spares": spares,
                "resources": {"GPU": _SHARE_OF_GPU},
            },
            "snapshot": {"every_steps": every_steps},
            "failures": {"max_failures": None, "hang_timeout_s": NOT_COMPILED_YET_S},
        }
    )


def measure_steps(args: Args, every_steps: int | None) -> list[Row]:
    """Train by turns with a plain loop; the first pair, in which both compile, doesn't count."""
    with LocalCluster.start(head_cpus=0, num_nodes=1, node_cpus=2) as cluster:
        connect(cluster.address)
        try:
            run = start_run(make_job(args, "train", spares=0, every_steps=every_steps))
            status = _run_beside_plain(args, run)
        finally:
            disconnect()
    ours, plain = (block_medians(args.work_dir, each)[1:] for each in ("trainflow", "plain"))
    ratios = [mine / other for mine, other in zip(ours, plain, strict=True)]
    low, high = interval_of_median(ratios)
    counted = status["steps"][args.steps_a_block :]
    snapshots_s = [each["phases_s"].get("snapshot", 0.0) for each in counted]
    system = "trainflow" if every_steps is None else "trainflow_every_step"
    print(f"{system}: ratios {[round(each, 4) for each in ratios]}", flush=True)
    return [
        Row(system, "overhead_ratio", median(ratios), "1"),
        Row(system, "overhead_ratio_low", low, "1"),
        Row(system, "overhead_ratio_high", high, "1"),
        *_rates(system, args, median(ours)),
        *_rates(f"plain_beside_{system}", args, median(plain)),
        Row(system, "snapshot_stall_ms", 1e3 * median(snapshots_s), "ms"),
        Row(system, "snapshot_stall_max_ms", 1e3 * max(snapshots_s), "ms"),
        Row(system, "pairs", len(ratios), "pairs"),
    ]


def _rates(system: str, args: Args, step_s: float) -> list[Row]:
    """Say how fast steps are: the model's own FLOPs, as a share of what the GPU does at most."""
    tokens_per_s = args.tokens_a_step / step_s
    with torch.device("meta"):
        shape = find_shape(gpu_job.build_model(args), gpu_job.SEQUENCE_LENGTH)
    peak = find_peak(torch.cuda.get_device_name(), "bf16")
    rows = [
        Row(system, "step_s", step_s, "s"),
        Row(system, "tokens_per_s", tokens_per_s, "tokens/s"),
    ]
    if shape is not None and peak is not None:
        rows.append(Row(system, "mfu", tokens_per_s * count_model_flops(shape) / peak, "1"))
    return rows


def _run_beside_plain(args: Args, run: Run) -> dict[str, Any]:
    """Run the plain loop beside the run, until both are done; return how the run ended."""
    command = [sys.executable, "-m", "benchmarks.gpu_job", args.model_dump_json()]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
        while process.poll() is None:
            if run.status()["state"] == "failed" or SYSTEM_CLOCK.monotonic_s() > deadline_s:
                raise RuntimeError(f"the run did not get to its end: {run.status()['ending']}")
            SYSTEM_CLOCK.sleep(0.5)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"the plain loop left with {process.returncode}")
    status = wait_for_status(run, "end", lambda status: status["ending"] is not None)
    if status["state"] != "succeeded":
        raise RuntimeError(f"TrainFlow's side ended as {status['state']}: {status['ending']}")
    return status


def measure_deaths(args: Args, num_kills: int) -> list[Row]:
    """Kill the rank, whose spare takes its place on the same GPU, again and again."""
    events = args.work_dir / "events"
    events.mkdir()
    with LocalCluster.start(head_cpus=0, num_nodes=1, node_cpus=3) as cluster:
        connect(cluster.address)
        try:
            run = start_run(make_job(args, "train_to_be_killed", spares=1, every_steps=1))
            samples = _kill(run, events, num_kills)
        finally:
            disconnect()
    print(summarize("deaths", samples), flush=True)
    beyond_s = [each.recovery_s - each.step_s for each in samples]
    return [
        Row("deaths", "recovery_beyond_step_s", median(beyond_s), "s"),
        Row("deaths", "recovery_beyond_step_max_s", max(beyond_s), "s"),
        Row("deaths", "step_s", median(each.step_s for each in samples), "s"),
        Row("deaths", "steps_lost", max(each.steps_lost for each in samples), "steps"),
        Row("deaths", "kills", len(samples), "kills"),
    ]


def _kill(run: Run, events: Path, num_kills: int) -> list[RecoverySample]:
    kills = []
    with closing(EventTail(events)) as tail:
        for number in range(num_kills):
            wait_for_status(
                run,
                "have a member and a spare",
                lambda s: (s["state"], s["world_size"], s["spares"]) == ("running", 1, 1),
                NOT_COMPILED_YET_S,
            )
            plan = KillPlan(1, number, num_processes=1, settled_steps=4)
            found = execute_kills(plan, Harness(tail, SYSTEM_CLOCK, lambda: None))
            wait_for_status(
                run,
                "record a recovery",
                lambda s, kill=found[0]: find_recovered(s["events"], kill) is not None,
            )
            kills += found
            print(f"{len(kills)} of {num_kills} deaths are recovered from", flush=True)
        return to_samples(tail.poll(), kills, ())


def kernel_rows(*, quick: bool) -> list[Row]:
    """Time the kernels; of each also the bytes that it moves, beside those of a copy."""
    rows = measure_kernels(quick=quick, devices=("cuda",))
    rates = {(row.system, row.metric): row.value for row in rows}
    moved: list[Row] = []
    for (block_format, metric), rate in rates.items():
        operation = metric.removesuffix("_triton")
        num_bytes = _bytes_moved(operation, _CODE_BYTES[block_format])
        if operation != metric and num_bytes is not None:
            copy = 8 * rates[block_format, "copy_triton"]
            ratio = num_bytes * rate / copy
            moved.append(Row(block_format, f"{metric}_bandwidth_ratio", ratio, "of a copy's bytes"))
    return rows + moved


def _bytes_moved(operation: str, code: float) -> float | None:
    """Return the bytes that are read and written for one fp32 number, scales left out."""
    return {
        "copy": 8.0,
        "encode": 4 + code,
        "encode_with_feedback": 12 + code,
        "decode": 4 + code,
        "decode_add": 8 + code,
        "reduce_encode_4": code + code / 4,
    }.get(operation)


def measure_nccl(num_rounds: int) -> list[Row]:
    """Abort an NCCL group of one rank and make the next, until it has summed something."""
    device = torch.device("cuda", torch.cuda.current_device())
    connect_one = NcclConnector(device, collective_timeout_s=10.0)
    store, numbers = HashStore(), torch.ones(_NCCL_ELEMENTS, device=device)
    abort_s: list[float] = []
    rebuild_s: list[float] = []
    transport = connect_one(PrefixStore("first", store), 0, 1)
    transport.all_reduce(numbers).wait()
    for number in range(num_rounds):
        start_s = SYSTEM_CLOCK.monotonic_s()
        transport.abort()
        aborted_s = SYSTEM_CLOCK.monotonic_s()
        transport = connect_one(PrefixStore(str(number), store), 0, 1)
        transport.all_reduce(numbers).wait()
        torch.cuda.synchronize(device)
        abort_s.append(aborted_s - start_s)
        rebuild_s.append(SYSTEM_CLOCK.monotonic_s() - aborted_s)
    transport.abort()
    if not bool((numbers == 1).all()):
        raise RuntimeError("the sum over one rank is not what was summed")
    return [
        Row("nccl", "abort_ms", 1e3 * median(abort_s), "ms"),
        Row("nccl", "abort_max_ms", 1e3 * max(abort_s), "ms"),
        Row("nccl", "rebuild_ms", 1e3 * median(rebuild_s), "ms"),
        Row("nccl", "rebuild_max_ms", 1e3 * max(rebuild_s), "ms"),
    ]


def measure_all(names: Sequence[str], *, quick: bool) -> list[Row]:
    """Measure the parts that are named, each in a folder of its own.

    Raises:
        ExceptionGroup: of the parts that failed, once all have been tried.
    """
    rounds = Args(
        work_dir=Path(),
        is_small=quick,
        compiles=not quick,
        num_blocks=3 if quick else 9,
        steps_a_block=4 if quick else 6,
        microbatches=2 if quick else 16,
    )
    to_die = rounds.model_copy(update={"num_blocks": 0, "compiles": False, "microbatches": 4})
    parts: dict[str, Callable[[Path], list[Row]]] = {
        "kernels": lambda _: kernel_rows(quick=quick),
        "nccl": lambda _: measure_nccl(3 if quick else 20),
        "every_step": lambda folder: measure_steps(_at(rounds, folder), 1),
        "deaths": lambda folder: measure_deaths(_at(to_die, folder), 1 if quick else 3),
        "steps": lambda folder: measure_steps(_at(rounds, folder), None),
    }
    rows: list[Row] = []
    failures: list[Exception] = []
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="bench-gpu-"))
        os.environ["TRAINFLOW_HOME"] = str(folder / "home")
        try:
            found = parts[name](folder)
        except (RuntimeError, OSError, TrainFlowError) as error:
            print(f"{name} failed: {error}", flush=True)
            failures.append(error)
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows += found
        for row in found:
            print(f"{row.system:>24} {row.metric:>40}: {row.value:.4f} {row.unit}", flush=True)
    if failures:
        raise ExceptionGroup("parts failed, and nothing is kept", failures)
    return rows


def _at(args: Args, folder: Path) -> Args:
    return args.model_copy(update={"work_dir": folder})


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, not compiled")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="measure these alone, and keep no result"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu: got no CUDA device, expected one; run it where there is")
    names = arguments.only or (QUICK_PARTS if arguments.quick else PARTS)
    rows = measure_all(names, quick=arguments.quick)
    conditions = {"device": torch.cuda.get_device_name()}
    publish("gpu", conditions, rows, quick=arguments.quick or names != PARTS)


if __name__ == "__main__":
    main()
