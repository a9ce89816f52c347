"""Remove from a run's store what its policy doesn't keep, and know when that is due.

Process: coordinator.  Thread: its event loop; the store is waited for in another.
"""

import asyncio
import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager

from trainflow.checkpointing.collector import Collected, collect
from trainflow.checkpointing.committing import forget_after
from trainflow.checkpointing.retention import RetentionPolicy, choose_kept
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine
from trainflow.config.job import JobConfig
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState
from trainflow.errors import CheckpointError

logger = logging.getLogger(__name__)


class StoreUpkeep:
    """The removals from one run's store.

    Attributes:
        own: the steps of what this run has made, with those that were there before it made any.
        is_due: whether there may be something to remove.
    """

    def __init__(self, job_id: str, job: JobConfig, record: RunRecord):
        self._job_id = job_id
        self._settings = job.checkpoint
        self._record = record
        self.own: set[int] = set()
        self.is_due = False
        self._num_removing = 0  # that are removing something from the store at the moment
        self._read: list[StoredState] = []  # by somebody, at the moment
        self._spared: set[StoredState] = set()  # by the last collection, since they were read

    @property
    def is_removing(self) -> bool:
        """Whether something is being removed from the store."""
        return self._num_removing > 0

    @contextmanager
    def removing(self) -> Generator[None]:
        """Remove something from the store."""
        self._num_removing += 1
        try:
            yield
        finally:
            self._num_removing -= 1

    @contextmanager
    def reading(self, stored: StoredState) -> Generator[None]:
        """Keep a checkpoint while somebody reads it; all others may go."""
        self._read.append(stored)
        try:
            yield
        finally:
            self._read.remove(stored)
            if stored in self._spared:
                self._spared.discard(stored)
                self.is_due = True

    async def forget_after(self, url: str, step: int) -> None:
        """Remove this run's checkpoints after a step; nobody may upload meanwhile.

        Raises:
            CheckpointError: the store doesn't answer; some may be gone.
        """
        with self.removing():
            gone = await asyncio.to_thread(forget_after, CheckpointStore(url), step, self.own)
        self.is_due = True
        self._tell_removed(gone)

    async def quarantine(self, url: str, step: int) -> bool:
        """Take a bad checkpoint away; returns whether it turns out to be whole, and stays."""
        try:
            with self.removing():
                num_bad = await asyncio.to_thread(quarantine, CheckpointStore(url), step)
        except CheckpointError as error:
            logger.warning("the checkpoint of step %d stays where it is: %s", step, error)
            return False
        if num_bad is None:
            text = f"the checkpoint of step {step} is whole, and stays where it is"
            self._record.add_event("checkpoint_whole", text, step=step)
            return True
        text = f"the checkpoint of step {step} no longer counts; {num_bad} bad chunks are removed"
        self._record.add_event("checkpoint_quarantined", text, step=step, num_bad_chunks=num_bad)
        return False

    async def collect(self, url: str) -> tuple[int, ...]:
        """Remove what the policy doesn't keep and nobody reads; nobody may upload meanwhile.

        What fails is told by an event, and left to the next time that it is due.

        Returns:
            The steps that are gone.
        """
        self.is_due = False
        self._spared = set(self._read)
        read = {stored.step for stored in self._read if stored.url == url}
        rewind = self._record.rewinds.pending
        read |= set() if rewind is None else {rewind.step}
        metric = self._settings.best_metric
        values = self._record.evaluations_of(metric) if metric is not None else {}
        try:
            with self.removing():
                collected = await asyncio.to_thread(self._remove, url, values, read)
        except CheckpointError as error:
            self._record.add_event("checkpoints_not_removed", str(error))
            return ()
        except Exception as error:  # the run's end is worse than what stays
            logger.exception("what is no longer kept could not be removed from %s", url)
            self._record.add_event("checkpoints_not_removed", f"{type(error).__name__}: {error}")
            return ()
        self._tell_removed(collected.steps)
        return collected.steps

    def _tell_removed(self, steps: Sequence[int]) -> None:
        if steps:
            text = f"removed the checkpoints of steps {list(steps)}"
            self._record.add_event("checkpoints_removed", text, steps=list(steps))

    def _remove(self, url: str, values: Mapping[int, float], read: Collection[int]) -> Collected:
        store = CheckpointStore(url)
        committed = store.committed_steps()
        for step in set(committed) - self.own:
            job_id = store.read_manifest(step).job_id
            if job_id != self._job_id:  # else the answer to its commit was lost
                raise CheckpointError(
                    f"{url}: got a checkpoint of step {step} by run {job_id}, expected this run's "
                    "alone while it goes on: nothing is removed there any more; give each run a "
                    "checkpoint.url of its own"
                )
        settings = self._settings
        policy = RetentionPolicy(settings.keep_last, settings.keep_every, settings.keep_best)
        return collect(store, choose_kept(committed, values, policy) | set(read))
