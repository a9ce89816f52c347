"""Set up one rank inside a worker process and run the training function in it.

Process: worker.  Thread: training.
"""

import gc
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group, connect_group
from trainflow.communication.nccl import NcclConnector
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.communication.transport import Connector
from trainflow.computation.chaos_orders import find_folder
from trainflow.computation.data_feed import open_data_feed
from trainflow.computation.epoch_gate import EpochGate, SessionClosed
from trainflow.computation.injection import Injector
from trainflow.computation.model_work import describe_work
from trainflow.computation.numerics import settle_numerics
from trainflow.computation.rank_context import RankContext
from trainflow.computation.session import Session
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.stack_file import StackFile
from trainflow.computation.stamps import StampWriter
from trainflow.computation.step_profiler import StepProfiler, TorchRecorder
from trainflow.computation.training_state import PreparedModel
from trainflow.computation.usage_meter import UsageMeter, noting_usage
from trainflow.computation.witness import Witness
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.messages import Finished, GroupFailed, WorkerSpec
from trainflow.coordination.reporter import Reporter
from trainflow.coordination.start_times import StartTimes
from trainflow.coordination.startup import StartPhase
from trainflow.coordination.timeout_budget import collective_timeout_s
from trainflow.data.map_dataset import MapDataset
from trainflow.epochs import EpochId, EpochSpec

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 15.0


def choose_device(job: JobConfig) -> torch.device:
    """Return the GPU that Ray gave this worker, or the CPU."""
    return torch.device("cuda", 0) if job.workers.resources.GPU > 0 else torch.device("cpu")


def make_connector(job: JobConfig, host: str, device: torch.device) -> Connector:
    """Choose the library that carries collectives."""
    backend, hang_s = job.communication.backend, job.failures.hang_timeout_s
    give_up_s = collective_timeout_s(None if hang_s == "auto" else hang_s)
    if backend == "nccl" or (backend == "auto" and device.type == "cuda"):
        return NcclConnector(device, collective_timeout_s=give_up_s)
    return GlooConnector(
        host,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        collective_timeout_s=give_up_s,
    )


@dataclass(frozen=True)
class Surroundings:
    """What training in a worker has around it.

    Attributes:
        gate: where epochs come from.
        host: address of this node.
        stamps: where progress is shown.
        reporter: brings messages to the coordinator.
        stacks: where the training thread's stack is asked for.
        start: measures how long it takes until the worker is warm.
        profiler: records steps when it is asked to.
        disturbance: this worker's part in a chaos campaign; None outside one.
    """

    gate: EpochGate
    host: str
    stamps: StampWriter
    reporter: Reporter
    stacks: StackFile
    start: StartTimes
    profiler: StepProfiler
    disturbance: Injector | None = None


def find_disturbance(spec: WorkerSpec) -> Injector | None:
    """Return what a chaos campaign wants done in this worker; None outside one."""
    folder = find_folder(spec.job_id)
    return None if folder is None else Injector(folder, spec.worker_id, SYSTEM_CLOCK)


def make_gate(
    spec: WorkerSpec,
    job: JobConfig,
    host: str,
    reporter: Reporter,
    disturbance: Injector | None = None,
) -> EpochGate:
    """Make the worker's gate; its groups report their failures to the coordinator."""
    connector = make_connector(job, host, choose_device(job))
    if disturbance is not None:
        connector = disturbance.watch(connector)

    def on_failure(epoch: EpochId, reason: str) -> None:
        reporter.send(GroupFailed(epoch, reason))

    def connect(epoch_spec: EpochSpec, rank: int) -> Group:
        return connect_group(
            epoch_spec, rank, connector, on_failure=on_failure, timeout_s=_CONNECT_TIMEOUT_S
        )

    return EpochGate(spec.worker_id, connect)


def make_profiler(job: JobConfig, stamps: StampWriter, reporter: Reporter) -> StepProfiler:
    """Make what records this worker's steps when it is asked to."""
    return StepProfiler(stamps, reporter.send, partial(TorchRecorder, choose_device(job)))


def run_training(spec: WorkerSpec, around: Surroundings) -> str | None:
    """Run the training function in TorchTrainer, and hold its final state until the run is over.

    Returns:
        The traceback, if it raised.
    """
    job, reporter = JobConfig.model_validate_json(spec.job_json), around.reporter

    def train() -> None:
        around.start.end(StartPhase.TRAINER)
        around.stacks.name_training_thread()
        session, witness = _open_session(spec, job, around)
        entrypoint = resolve_entrypoint(job.entrypoint)
        try:
            _run_entrypoint(session, lambda: entrypoint.function(session, session.args))
        finally:
            around.profiler.finish()
        if witness is not None:
            witness.on_end(*session.describe_end())
        reporter.send(Finished())
        session.linger()

    try:
        with _metering(job, around.stamps):
            TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
    except SessionClosed:
        logger.info("%s: the session was closed", spec.worker_id)
    except BaseException:  # noqa: BLE001  not swallowed: the coordinator fails the job with it
        return traceback.format_exc()
    return None


def _metering(job: JobConfig, stamps: StampWriter) -> AbstractContextManager[None]:
    """Note inside what this worker takes of its machine, if the run is monitored."""
    if not job.monitoring.enabled:
        return nullcontext()
    return noting_usage(stamps, UsageMeter.of_device(choose_device(job)))


def _run_entrypoint(session: Session, run: Callable[[], object]) -> None:
    run()
    if not session.finished:
        raise RuntimeError(
            "the training function returned before the last step; expected it to go through "
            "session.steps() to its end"
        )


def _open_session(
    spec: WorkerSpec, job: JobConfig, around: Surroundings
) -> tuple[Session, Witness | None]:
    device = choose_device(job)
    settle_numerics(job)
    args = resolve_entrypoint(job.entrypoint).check_args(job.args)
    gc.freeze()  # modules stay: going over them would hold up some step for tenths of a second
    around.start.end(StartPhase.MODULE)
    feed = open_data_feed(job, args)
    around.start.end(StartPhase.DATA)
    rehearsal = _make_rehearsal(job, around.host, device) if spec.rehearse else None
    context = RankContext(
        job=job,
        args=args,
        job_id=spec.job_id,
        device=device,
        feed=feed,
        gate=around.gate,
        stamps=around.stamps,
        report=around.reporter.send,
        rehearsal=rehearsal,
        snapshots=_open_snapshots(spec, job, around.reporter),
        shared_memory=_shared_memory(spec),
        worker_id=spec.worker_id,
        host=around.host,
        on_built=partial(_on_built, job, around, device, feed.dataset),
    )
    context.stamps.listeners.append(around.profiler.on_stamp)
    return Session(context), _join_campaign(spec, context, around.disturbance)


def _on_built(
    job: JobConfig,
    around: Surroundings,
    device: torch.device,
    dataset: MapDataset,
    models: Mapping[str, PreparedModel],
) -> None:
    """The models are there: tell how much they compute, as far as that can be known."""
    around.start.end(StartPhase.MODEL)
    try:
        work = describe_work(models, job, device, dataset)
    except Exception:  # a model may have anything for a configuration; training goes on
        logger.exception("how much the model computes can't be told")
        return
    if work is not None:
        around.reporter.send(work)


def _join_campaign(
    spec: WorkerSpec, context: RankContext, disturbance: Injector | None
) -> Witness | None:
    """Take part in a chaos campaign, if there is one: write down what is done, and be disturbed."""
    folder = find_folder(spec.job_id)
    if folder is None or disturbance is None:
        return None
    witness = Witness(folder, spec.worker_id, len(context.feed.dataset))
    context.stamps.listeners += [witness.on_stamp, disturbance.on_stamp]
    context.feed.on_read = witness.on_read
    return witness


def _shared_memory(spec: WorkerSpec) -> Path:
    return names.stamp_directory(spec.job_id, ray.get_runtime_context().get_node_id())


def _open_snapshots(spec: WorkerSpec, job: JobConfig, reporter: Reporter) -> SnapshotCadence | None:
    in_memory = job.snapshot.every_steps is not None
    if job.checkpoint.url is None and not in_memory:
        return None
    writer = SnapshotWriter(
        _shared_memory(spec),
        spec.worker_id,
        num_slots=_num_slots(job),
        num_kept=2 if job.parallel.is_sharded else 1,
        shares_only=not in_memory,
    )
    return SnapshotCadence(job, writer, reporter.send, SYSTEM_CLOCK)


def _num_slots(job: JobConfig) -> int:
    """Return how many snapshots a worker may need at once; see `SnapshotWriter`."""
    if job.snapshot.every_steps is None:
        return 1  # without copies in memory there is nothing to fall back on while it is written
    if not job.parallel.is_sharded:
        return 4
    return 5 if job.checkpoint.url is None else 6


def _make_rehearsal(job: JobConfig, host: str, device: torch.device) -> Group:
    if job.parallel.is_sharded:
        return rehearsal_group(job.workers.target, job.shard_size(job.workers.target))
    return _solo_group(make_connector(job, host, device))


def _solo_group(connect: Connector) -> Group:
    """Connect a group of this process alone."""
    spec = EpochSpec(EpochId(0, 0), (f"pid-{os.getpid()}",), "", 0)
    transport = connect(dist.HashStore(), 0, 1)
    return Group(spec, 0, transport, lambda _epoch, reason: logger.warning("rehearsal: %s", reason))
