"""Build the training state of a job outside a run, as far as the first step, and fill it.

The training function is called in a world of one rank that a gate, an epoch and a group lead
through the very code that a run begins with; it is unwound where its first step would begin. So
nothing is computed, and what comes after the steps is never reached. On the CPU, whatever the job
asks for: a GPU may be somebody's.

Process: one of its own, for a drill, an export or an import.
Threads: main is training; one, of control, forms and begins the epoch.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError

from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.computation.aborted import StepMode
from trainflow.computation.data_feed import open_data_feed
from trainflow.computation.epoch_gate import EpochGate, SessionClosed
from trainflow.computation.outer_environment import naming_missing_variables
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import CheckpointUnusable
from trainflow.computation.session import Session
from trainflow.computation.stamps import StampWriter
from trainflow.computation.step import Step
from trainflow.computation.training_state import TrainingState
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.job import AS_KEPT, JobConfig
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, RecoveryPlan, StoredState
from trainflow.errors import CheckpointError, CoordinationError, TrainFlowError, TrainingError

_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0
_SPEC = EpochSpec(EpochId(1, 1), ("alone",), "", 0)


class _SessionToTheFirstStep(Session):
    """A session that ends where a run's first step would begin.

    Attributes:
        reached: it got there, with the state that the plan asks for.
        begun_at_s: CLOCK_MONOTONIC of when the training function asked for steps.
        reached_at_s: of when it got there.
    """

    reached = False
    begun_at_s = reached_at_s = 0.0

    @property
    def state(self) -> TrainingState:
        """The state, live."""
        return self._state

    def _join_epoch(self) -> Iterator[Step]:
        self.begun_at_s = time.monotonic()
        yield from super()._join_epoch()

    def _present(self, mode: StepMode, group: Group) -> Iterator[Step]:  # noqa: ARG002
        yield from self._end_here()

    def _leave_together(self, group: Group) -> None:  # noqa: ARG002
        list(self._end_here())

    def _end_here(self) -> Iterator[Step]:
        self.reached, self.reached_at_s = True, time.monotonic()
        raise SessionClosed
        yield


def parse_job(config: object, source: str) -> JobConfig:
    """Return the job whose settings a checkpoint holds.

    Raises:
        CheckpointError: it holds none, or those of another release.
    """
    try:
        return JobConfig.model_validate_json(json.dumps(config), context=AS_KEPT)
    except ValidationError as error:
        raise CheckpointError(
            f"{source}: got settings that are no job of this release ({error.error_count()} "
            f"problems, the first: {error.errors()[0]['msg']}), expected those of the run that "
            "saved it"
        ) from error


@contextmanager
def build_state(
    job: JobConfig, job_id: str, stored: StoredState | None = None
) -> Generator[tuple[TrainingState, float]]:
    """Yield the state that ``job`` begins with, from ``stored`` if given, and how long that took.

    That is the seconds from the call of ``session.steps()`` on: the restore without the building.

    Raises:
        TrainFlowError: the training function or its data can't be opened, or the checkpoint is
            damaged or of another training function.
        TrainingError: the training function raised, or never came to its steps.
    """
    with naming_missing_variables(job), _build_state(job, job_id, stored) as built:
        yield built


@contextmanager
def _build_state(
    job: JobConfig, job_id: str, stored: StoredState | None
) -> Generator[tuple[TrainingState, float]]:
    entrypoint = resolve_entrypoint(job.entrypoint)
    args = entrypoint.check_args(job.args)
    gate = EpochGate("alone", _connect)
    unusable: list[str] = []

    def report(message: object) -> None:
        if isinstance(message, CheckpointUnusable):
            unusable.append(message.reason)
            gate.close()

    with (
        tempfile.TemporaryDirectory(prefix="trainflow-") as scratch,
        closing(open_data_feed(job, args)) as feed,
        closing(StampWriter(Path(scratch, "job", "node", "alone.stamp"))) as stamps,
    ):
        session = _SessionToTheFirstStep(
            RankContext(
                job=job,
                args=args,
                job_id=job_id,
                device=torch.device("cpu"),
                feed=feed,
                gate=gate,
                stamps=stamps,
                report=report,
                rehearsal=None,
            )
        )
        with _led_into_an_epoch(gate, stored):
            _call(lambda: entrypoint.function(session, args), job.entrypoint)
        if unusable:
            raise CheckpointError(unusable[0])
        if not session.reached:
            raise TrainingError(
                f"{job.entrypoint}: got a return before the first step, expected it to go through "
                "session.steps()"
            )
        yield session.state, session.reached_at_s - session.begun_at_s


@contextmanager
def _led_into_an_epoch(gate: EpochGate, stored: StoredState | None) -> Generator[None]:
    """Have a thread lead training into an epoch of its own as soon as it waits for one."""

    def lead() -> None:
        base = INITIAL_VERSION if stored is None else stored.version
        with suppress(CoordinationError):  # the training function ended before it wanted an epoch
            gate.form(_SPEC)
            gate.begin(RecoveryPlan(_SPEC, base, stored=stored))

    control = threading.Thread(target=lead, name="control")
    control.start()
    try:
        yield
    finally:
        gate.close()
        control.join()


def _call(train: Callable[[], Any], entrypoint: str) -> None:
    try:
        train()
    except SessionClosed:
        return
    except TrainFlowError:
        raise
    except Exception as error:
        raise TrainingError(
            f"{entrypoint}: got {type(error).__name__} ({error}), expected a training function "
            "that comes to its first step; mend it, or run this where the job itself runs"
        ) from error


def _connect(spec: EpochSpec, rank: int) -> Group:
    connector = GlooConnector(_HOST, connect_timeout_s=_TIMEOUT_S, collective_timeout_s=_TIMEOUT_S)
    transport = connector(dist.HashStore(), rank, spec.world_size)
    return Group(spec, rank, transport, lambda _epoch, _reason: None)
