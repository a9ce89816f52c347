"""Run some steps of a job again, from a checkpoint or the beginning, and tell their digests.

    python -m trainflow.computation.replay

The training function runs in a world that is as large as the run's was, led into one epoch through
the code that a run begins with, and is unwound after the last step that is wanted. What a run keeps
isn't kept: no copies, no checkpoints, no record. What the function itself does is done again.

Process: one a rank; `trainflow.coordination.replay` starts them.
Threads: main is training; one, of control, forms and begins the epoch.
Ranks: all, with the same request but for the rank.  Blocks: until they have come to the end.
Fails: with the first error of its own, or because another rank is gone.
"""

import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainflow.communication import commit_record
from trainflow.communication.commit_record import CommitRecord
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.communication.nccl import NcclConnector
from trainflow.communication.transport import Connector
from trainflow.computation.aborted import StepMode
from trainflow.computation.data_feed import open_data_feed
from trainflow.computation.epoch_gate import EpochGate, SessionClosed
from trainflow.computation.numerics import settle_numerics
from trainflow.computation.outer_environment import naming_missing_variables
from trainflow.computation.outside_a_run import parse_job
from trainflow.computation.own_process import answer_request
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import CheckpointUnusable, StepReport, TensorDigests
from trainflow.computation.session import Session
from trainflow.computation.stamps import StampWriter
from trainflow.computation.step import Step
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.job import JobConfig
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, RecoveryPlan, StoredState
from trainflow.errors import (
    CheckpointError,
    CommunicationError,
    ConfigError,
    CoordinationError,
    TrainFlowError,
    TrainingError,
)

Json = Any

_HOST = "127.0.0.1"
_CONNECT_TIMEOUT_S = 300.0
_COLLECTIVE_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class ReplayRequest:
    """What one rank is asked.

    Attributes:
        config: the job's settings, as JSON.
        job_id: of the run whose steps these are.
        rank: this one.
        world_size: how many there are.
        meeting_place: a file that doesn't exist yet, the same for all.
        base: where the state is read that comes before the first step; None: the job's beginning.
        last_step: that is wanted.
        position: in the data, after which the first step begins; None: as ``base`` has it.
    """

    config: dict[str, Any]
    job_id: str
    rank: int
    world_size: int
    meeting_place: str
    base: StoredState | None
    last_step: int
    position: int | None = None

    @classmethod
    def parse(cls, request: Json) -> "ReplayRequest":
        """Read it as `asdict` has written it."""
        base = request["base"]
        return cls(**request | {"base": None if base is None else StoredState(**base)})


@dataclass
class _Heard:
    """What came of it on this rank: what a coordinator would have been told, and any trouble."""

    steps: list[StepReport] = field(default_factory=list[StepReport])
    tensors: list[TensorDigests] = field(default_factory=list[TensorDigests])
    trouble: list[TrainFlowError] = field(default_factory=list[TrainFlowError])

    def answer(self) -> Json:
        """Return it as JSON; of rank 0 it says all."""
        return {
            "steps": [[each.step, each.digest, each.loss] for each in self.steps],
            "tensors": [[each.step, each.digests] for each in self.tensors],
        }


class _SessionUpToAStep(Session):
    """A session that ends once a step, and the code after its commit, is done on every rank.

    Attributes:
        reached: it got there.
    """

    reached = False

    def __init__(self, context: RankContext, last_step: int):
        super().__init__(context)
        self._last_step = last_step

    def _present(self, mode: StepMode, group: Group) -> Iterator[Step]:
        version = self._state.version
        if mode is StepMode.LIVE and version is not None and version.step >= self._last_step:
            self._leave_together(group)
        yield from super()._present(mode, group)

    def _leave_together(self, group: Group) -> None:
        self.reached = True
        commit_record.exchange(CommitRecord(0, 0, self._last_step), group, self.device)
        raise SessionClosed


def replay(request: ReplayRequest) -> Json:
    """Return the digests of the steps after ``base``, up to the last that is wanted.

    Raises:
        TrainFlowError: the training function, its data or the checkpoint can't be had here, it
            raised, or another rank did.
    """
    job = parse_job(request.config, f"the record of {request.job_id}")
    with naming_missing_variables(job):
        return _replay(job, request)


def _replay(job: JobConfig, request: ReplayRequest) -> Json:
    settle_numerics(job)
    device = _choose_device(job, request)
    entrypoint = resolve_entrypoint(job.entrypoint)
    args = entrypoint.check_args(job.args)
    heard = _Heard()
    gate = _make_gate(job, request, device, heard)

    def report(message: object) -> None:
        if isinstance(message, StepReport):
            heard.steps.append(message)
        elif isinstance(message, TensorDigests):
            heard.tensors.append(message)
        elif isinstance(message, CheckpointUnusable):
            heard.trouble.append(CheckpointError(message.reason))

    with (
        tempfile.TemporaryDirectory(prefix="trainflow-") as scratch,
        closing(open_data_feed(job, args)) as feed,
        closing(StampWriter(Path(scratch, "job", "node", "replay.stamp"))) as stamps,
    ):
        context = RankContext(
            job=job,
            args=args,
            job_id=request.job_id,
            device=device,
            feed=feed,
            gate=gate,
            stamps=stamps,
            report=report,
            rehearsal=None,
        )
        session = _SessionUpToAStep(context, request.last_step)
        with _led_into_an_epoch(gate, _plan(job, request), heard):
            _train(job, entrypoint.function, session)
    if not session.reached:
        raise heard.trouble[0] if heard.trouble else _ended_early(job, request)
    return heard.answer()


def _train(job: JobConfig, function: Any, session: Session) -> None:  # noqa: ANN401  the job's own
    try:
        function(session, session.args)
    except SessionClosed:
        return
    except TrainFlowError:
        raise
    except Exception as error:
        raise TrainingError(
            f"{job.entrypoint}: got {type(error).__name__} ({error}), expected a training function "
            "that does the step as it did in the run; run this where the job itself runs"
        ) from error


def _ended_early(job: JobConfig, request: ReplayRequest) -> TrainingError:
    return TrainingError(
        f"{job.entrypoint}: got a return before step {request.last_step} was done, expected it to "
        "go through session.steps()"
    )


def _choose_device(job: JobConfig, request: ReplayRequest) -> torch.device:
    """Return a GPU of this rank's own, if the job has GPUs."""
    if not job.workers.resources.GPU:
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found < request.world_size:
        raise ConfigError(
            f"replay: got {found} GPUs on this machine, expected one for each of "
            f"{request.world_size} ranks, as workers.resources.GPU asks; run it on a larger one"
        )
    device = torch.device("cuda", request.rank)
    torch.cuda.set_device(device)
    return device


def _make_gate(
    job: JobConfig, request: ReplayRequest, device: torch.device, heard: _Heard
) -> EpochGate:
    """Make this rank's gate, which closes when the group fails: there is no other epoch."""

    def on_failure(_epoch: EpochId, reason: str) -> None:
        heard.trouble.append(CommunicationError(f"replay: rank {request.rank}: {reason}"))
        gate.close()

    def connect(spec: EpochSpec, rank: int) -> Group:
        store = dist.FileStore(request.meeting_place, spec.world_size)
        store.set_timeout(timedelta(seconds=_CONNECT_TIMEOUT_S))
        transport = _choose_connector(job, device)(store, rank, spec.world_size)
        return Group(spec, rank, transport, on_failure)

    gate = EpochGate(_member(request.rank), connect)
    return gate


def _choose_connector(job: JobConfig, device: torch.device) -> Connector:
    if device.type == "cuda" and job.communication.backend != "gloo":
        return NcclConnector(device, collective_timeout_s=_COLLECTIVE_TIMEOUT_S)
    return GlooConnector(
        _HOST, connect_timeout_s=_CONNECT_TIMEOUT_S, collective_timeout_s=_COLLECTIVE_TIMEOUT_S
    )


def _plan(job: JobConfig, request: ReplayRequest) -> RecoveryPlan:
    """Return how all ranks come to the state before the first step, as a run does that resumes."""
    members = tuple(map(_member, range(request.world_size)))
    shard_size = job.shard_size(request.world_size)
    spec = EpochSpec(EpochId(1, 1), members, "", 0, shard_size=shard_size)
    others = {} if job.parallel.is_sharded else dict.fromkeys(range(1, request.world_size), 0)
    if request.base is None:
        return RecoveryPlan(spec, INITIAL_VERSION, others)
    base = request.base
    position = request.position
    return RecoveryPlan(
        spec, base.version, others, replay_tail=True, stored=base, position=position
    )


def _member(rank: int) -> str:
    return f"replay-{rank}"


@contextmanager
def _led_into_an_epoch(gate: EpochGate, plan: RecoveryPlan, heard: _Heard) -> Generator[None]:
    """Have a thread lead training into the epoch as soon as it waits for one."""

    def lead() -> None:
        try:
            gate.form(plan.spec)
            gate.begin(plan)
        except CoordinationError:
            return  # the training function ended before it wanted an epoch
        except RuntimeError as error:  # also what torch's stores raise
            text = f"replay: the ranks could not be connected: {error}"
            heard.trouble.append(CommunicationError(text))
            gate.close()

    control = threading.Thread(target=lead, name="control")
    control.start()
    try:
        yield
    finally:
        gate.close()
        control.join()


if __name__ == "__main__":
    answer_request(lambda request: replay(ReplayRequest.parse(request)))
