"""Bring a worker's messages to the coordinator, in order, each at least once.

The coordinator may be dead for seconds while training goes on: messages wait and are sent again,
and the coordinator takes a repeated one as what it is.

Process: every worker.  Threads: any sends, one delivers.  Blocks: never the sender.
"""

import logging
import os
import queue
import threading

import ray
from ray.exceptions import GetTimeoutError, RayError

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import names
from trainflow.coordination.messages import WorkerMessage

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 0.2
_ACKNOWLEDGE_WITHIN_S = 5.0


class Reporter:
    """One worker's line to its coordinator."""

    def __init__(self, job_id: str, worker_id: str):
        self._coordinator_name = names.coordinator_name(job_id)
        self._worker_id = worker_id
        self._queue: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_undelivered = 0
        threading.Thread(target=self._deliver, name="reporter", daemon=True).start()

    def send(self, message: WorkerMessage) -> None:
        """Hand over a message; returns at once."""
        with self._changed:
            self._num_undelivered += 1
        self._queue.put(message)

    def flush(self, within_s: float) -> bool:
        """Wait until everything has been heard; False if that takes longer than it may."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_undelivered, within_s)

    def _deliver(self) -> None:
        try:
            self._deliver_all()
        except BaseException:
            # A worker that can't be heard is of no use: dead, it is replaced.
            logger.exception("%s can't report to its coordinator", self._worker_id)
            os._exit(1)

    def _deliver_all(self) -> None:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            while not self._try(batch):
                SYSTEM_CLOCK.sleep(_RETRY_AFTER_S)
            with self._changed:
                self._num_undelivered -= len(batch)
                self._changed.notify_all()

    def _try(self, batch: list[WorkerMessage]) -> bool:
        try:
            coordinator = ray.get_actor(self._coordinator_name, names.NAMESPACE)
            answer = coordinator.report.remote(self._worker_id, batch)
            ray.get(answer, timeout=_ACKNOWLEDGE_WITHIN_S)
        except (RayError, GetTimeoutError, ValueError):  # ValueError: no such actor at the moment
            return False
        return True
