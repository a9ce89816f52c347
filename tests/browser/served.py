"""A service that really listens, and runs that are written as their coordinators would.

Process: the caller's.  Thread: the service listens in one, another keeps the history.
"""

import json
import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import STEP, RecordedRun, listening
from trainflow.checkpointing.whole_files import replace_file
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.log_segments import append_to_log
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.status_file import STATUS_FILE
from trainflow.coordination.worker_output import FOLDER
from trainflow.epochs import EpochId
from trainflow.service.app import create_app
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.ingest_thread import IngestThread
from trainflow.service.log_stream import DRIVER_LOG
from trainflow.service.settings import ServiceSettings
from trainflow.service.streams import OpenStreams

LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Served:
    """A service.

    Attributes:
        url: of its page.
        history: that it tells of.
        streams: that are open.
    """

    url: str
    history: History
    streams: OpenStreams

    def job_url(self, job_id: str) -> str:
        return f"{self.url}/#/jobs/{job_id}"


@contextmanager
def serve_runs(*, port: int = 0, **changes: Any) -> Generator[Served]:
    """Serve the runs under TRAINFLOW_HOME; without tokens, unless the settings ask for them."""
    given = {"authentication": "off", "history": {"poll_every_s": LOOK_EVERY_S}} | changes
    with open_history() as history:
        ingester = Ingester(history.database)
        ingester.catch_up()  # so that a page which is opened at once finds what is there
        keeping = IngestThread(ingester, LOOK_EVERY_S)
        keeping.start()
        app = create_app(ServiceSettings.model_validate(given), history, FakeCluster())
        try:
            with listening(app, port) as url:
                yield Served(url, history, app.state.context.streams)
        finally:
            keeping.stop()


class WatchedRun(RecordedRun):
    """A run with steps that look like training, and a published status."""

    def __init__(self, job_id: str, labels: dict[str, str] | None = None):
        super().__init__(job_id, labels)
        self._status: dict[str, Any] = {"state": "running"}
        self._workers: list[dict[str, Any]] = []

    def learn(self, steps: Iterable[int], epoch: EpochId = STEP.epoch, **changes: Any) -> None:
        """Commit steps, half a second from one to the next, the last one now."""
        counted = list(steps)
        begun_at_s = SYSTEM_CLOCK.unix_s() - len(counted) / 2
        for number, step in enumerate(counted):
            wave = math.sin(step / 7)
            report = replace(
                STEP,
                step=step,
                epoch=epoch,
                committed_at_s=begun_at_s + number / 2,
                loss=0.4 + 3.0 / (1 + step / 25) + 0.05 * wave,
                grad_norm=1.2 + 0.4 * math.cos(step / 5),
                compute_s=0.3 + 0.02 * wave,
                wait_s=0.12 + 0.02 * math.cos(step / 3),
                shortest_wait_s=0.07,
            )
            spares = self._status.get("spares", 0)
            self.record.add_step(replace(report, **changes), lambda spares=spares: spares)

    def publish(self, *, age_s: float = 0.0, **status: Any) -> None:
        """Publish a status, with what it was before where nothing else is given."""
        self._status |= {
            "job_id": self.job_id,
            "max_steps": 400,
            "step": self.record.last_step,
            "as_of_s": SYSTEM_CLOCK.unix_s() - age_s,
            **status,
        }
        document = {"status": self._status, "workers": self._workers}
        replace_file(self.directory / STATUS_FILE, json.dumps(document).encode())

    def resume(self, epoch: EpochId) -> None:
        """Begin the next attempt, as a coordinator of its own, after the newest step."""
        self.record = RunRecord(self.directory, SYSTEM_CLOCK)
        self.record.begin_attempt(self.record.attempt + 1)
        self.record.begin_after(self.record.last_step, "a checkpoint", epoch)

    def employ(self, count: int, spares: int = 0) -> None:
        """Have so many workers from the next status on."""
        self._status |= {"world_size": count, "spares": spares}
        self._workers = [
            {
                "worker_id": f"w{number}",
                "rank": number if number < count else None,
                "state": "member" if number < count else "spare",
                "host": f"10.0.0.{number + 1}",
                "pid": 1000 + number,
                "step": self.record.last_step,
                "phase": "compute",
                "lag_s": 0.1,
            }
            for number in range(count + spares)
        ]

    def print(self, text: str, worker: str | None = None) -> None:
        """Print as the job's driver, or as one of its workers."""
        if worker is None:
            with (self.directory / DRIVER_LOG).open("a", encoding="utf-8") as log:
                log.write(text)
        else:
            append_to_log(self.directory / FOLDER / worker, text.encode())

    def lose(self, rank: int) -> None:
        """Tell of a worker that was killed."""
        text = f"lost w{rank} (rank {rank}): its process was killed"
        self.record.add_event("failure", text, worker=f"w{rank}", rank=rank, cause="killed")

    def recover(self, step: int, took_s: float = 0.42) -> None:
        """Tell of a recovery that has just ended, with a step that all have committed."""
        now_s = SYSTEM_CLOCK.unix_s()
        noticed_at_s = now_s - took_s
        self.record.add_event(
            "recovered",
            f"step {step} committed by all of 3, {took_s:.2f} s after the loss was noticed",
            causes=["lost w1 (rank 1): its process was killed"],
            noticed_at_s=noticed_at_s,
            begun_at_s=noticed_at_s + took_s / 4,
            healed_at_s=noticed_at_s + took_s / 2,
            committed_at_s=now_s,
            base_step=step - 1,
            steps_lost=0,
        )

    def keep(self, step: int) -> None:
        """Tell of a checkpoint."""
        text = f"step {step} is in /checkpoints: 1048576 bytes, 4096 of them new"
        sizes = {"num_bytes": 1048576, "num_bytes_written": 4096}
        self.record.add_event("checkpoint", text, step=step, **sizes)
