"""One rank: what a worker actor is to Ray, as a plain process on a pipe.

Process: rank.  Threads: main trains; control serves the pipe, each ``form`` in a thread of its own.
"""

import ctypes
import faulthandler
import os
import signal
import threading
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pydantic import BaseModel

from tests.distributed.faults import Injector, asked_mark, make_faulty
from tests.distributed.training import Samples
from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group, connect_group
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation.data_feed import DataFeed
from trainflow.computation.epoch_gate import EpochGate, SessionClosed
from trainflow.computation.rank_context import RankContext
from trainflow.computation.session import Session
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.stamps import StampWriter
from trainflow.data.batch import Batch
from trainflow.data.order import Microbatch
from trainflow.epochs import EpochId, EpochSpec, MemberReport, Phase
from trainflow.errors import TrainFlowError

if TYPE_CHECKING:
    from tests.distributed.case import Case

HOST = "127.0.0.1"
CONNECT_TIMEOUT_S = 10.0
COLLECTIVE_TIMEOUT_S = 600.0
_PR_SET_PDEATHSIG = 1


class NoArgs(BaseModel):
    """What the training functions here take."""


class Line:
    """The pipe to the coordinator; any thread sends."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        with self._lock:
            self.connection.send(message)


class RecordingStamps(StampWriter):
    """Stamps that also tell the injector, and the coordinator what was committed."""

    def __init__(self, path: Path, line: Line, injector: Injector):
        self._line = line
        self._injector = injector
        super().__init__(path)

    def stamp(self, phase: Phase, *, step: int, epoch: EpochId, sequence: int) -> None:
        super().stamp(phase, step=step, epoch=epoch, sequence=sequence)
        applied = self._injector.applies_with(phase)
        if applied and epoch.incarnation:
            self._line.send("committed", step, epoch)
        self._injector.enter(phase, step, epoch)


class RecordingFeed(DataFeed):
    """A feed that tells which samples are read for which try of a step."""

    def __init__(self, case: "Case", line: Line, injector: Injector):
        super().__init__(case.job, Samples(case.num_samples), Samples(23))
        self._line = line
        self._injector = injector

    def read(self, microbatch: Microbatch) -> Batch:
        batch = super().read(microbatch)
        where = self._injector
        if where.is_real:
            self._line.send("used", where.step, where.epoch, list(batch.indices))
        return batch


def run_rank(
    connection: Connection, worker_id: str, case: "Case", directory: str, *, rehearse: bool
) -> None:
    """Train until the coordinator closes the session, or is gone."""
    _die_with_parent()
    torch.set_num_threads(1)
    store = dist.TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    line = Line(connection)
    grows_after = max(case.late.values(), default=None)
    injector = Injector(worker_id, case.faults, Path(directory), grows_after)
    gate = _make_gate(worker_id, line, injector)
    stamps = RecordingStamps(Path(directory) / worker_id, line, injector)
    serving = (line, gate, asked_mark(Path(directory)))
    threading.Thread(target=_serve, args=serving, daemon=True).start()
    threading.Thread(target=_announce, args=(line, gate, store.port), daemon=True).start()
    context = RankContext(
        job=case.job,
        args=NoArgs(),
        job_id="test",
        device=torch.device("cpu"),
        feed=RecordingFeed(case, line, injector),
        gate=gate,
        stamps=stamps,
        report=lambda report: line.send("report", report),
        rehearsal=_make_rehearsal(case) if rehearse else None,
        snapshots=_open_snapshots(worker_id, case, line, Path(directory)),
        shared_memory=Path(directory),
        worker_id=worker_id,
    )
    _train(Session(context), line, case)
    stamps.close()


def _open_snapshots(
    worker_id: str, case: "Case", line: Line, directory: Path
) -> SnapshotCadence | None:
    """Copy what is for storage to the ranks' folder; the test brings it there."""
    is_sharded = case.job.parallel.is_sharded
    if case.job.checkpoint.url is None and not is_sharded:
        return None
    kept = 2 if is_sharded else 1
    writer = SnapshotWriter(directory, worker_id, num_slots=6 if is_sharded else 3, num_kept=kept)
    return SnapshotCadence(
        case.job, writer, lambda report: line.send("report", report), SYSTEM_CLOCK
    )


def _train(session: Session, line: Line, case: "Case") -> None:
    try:
        line.send("finished", case.train(session, case.extra))
        session.linger()
    except SessionClosed:
        pass
    except Exception as error:  # noqa: BLE001  not swallowed: the test looks at it
        line.send("crashed", type(error).__name__, f"{error}\n{traceback.format_exc()}")
        session.linger()


def _make_gate(worker_id: str, line: Line, injector: Injector) -> EpochGate:
    connector = GlooConnector(
        HOST,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        collective_timeout_s=COLLECTIVE_TIMEOUT_S,
    )

    def connect(spec: EpochSpec, rank: int) -> Group:
        return connect_group(
            spec,
            rank,
            make_faulty(connector, injector),
            on_failure=lambda epoch, reason: line.send("group_failed", epoch, reason),
            timeout_s=CONNECT_TIMEOUT_S,
        )

    return EpochGate(worker_id, connect)


def _serve(line: Line, gate: EpochGate, asked: Path) -> None:
    """Carry out what the coordinator says; when it is gone, so is this process."""
    while True:
        try:
            call, *arguments = line.connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if call == "form":
            threading.Thread(target=_form, args=(line, gate, *arguments), daemon=True).start()
        else:
            getattr(gate, call)(*arguments)
        if call == "request":
            asked.touch()


def _form(line: Line, gate: EpochGate, spec: EpochSpec, at_boundary: bool) -> None:  # noqa: FBT001
    answer: MemberReport | str
    try:
        answer = gate.form(spec, at_boundary=at_boundary)
    except TrainFlowError as error:
        answer = str(error)
    line.send("formed", spec.epoch, answer)


def _announce(line: Line, gate: EpochGate, store_port: int) -> None:
    gate.wait_parked()
    line.send("ready", store_port)


def _make_rehearsal(case: "Case") -> Group:
    job = case.job
    if not job.parallel.is_sharded:
        return _solo_group()
    return rehearsal_group(job.workers.target, job.shard_size(job.workers.target))


def _solo_group() -> Group:
    spec = EpochSpec(EpochId(0, 0), ("alone",), "", 0)
    connect = GlooConnector(
        HOST,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        collective_timeout_s=COLLECTIVE_TIMEOUT_S,
    )
    return Group(spec, 0, connect(dist.HashStore(), 0, 1), lambda _epoch, _reason: None)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
