"""Read the microbatches of the steps to come while the present one is computed.

Process: every rank.  Threads: ``schedule``, ``get`` and ``close`` are called by training; one
daemon thread reads ahead. Blocks: ``get`` only, until its one microbatch is read. Fails: with the
dataset's own exception, in ``get``. A rank's schedule follows from its step, rank and world size;
when those change, it schedules again.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue

from trainflow.data.batch import Batch, batch_samples
from trainflow.data.map_dataset import MapDataset, Samples, read_samples
from trainflow.data.order import Microbatch, SampleOrder

_CLOSE_TIMEOUT_S = 5.0

_Span = tuple[int, int]


class MicrobatchLoader:
    """Microbatches by stream position, the next ``prefetch_batches`` of the schedule read ahead.

    Memory: at most ``prefetch_batches`` batches, and the one being handed over.
    """

    def __init__(
        self,
        dataset: MapDataset,
        order: SampleOrder,
        *,
        prefetch_batches: int,
        to_batch: Callable[[Samples, Sequence[int]], Batch] = batch_samples,
    ) -> None:
        """Start the reader thread; it idles until something is scheduled."""
        self._dataset = dataset
        self._order = order
        self._num_ahead = prefetch_batches
        self._to_batch = to_batch
        self._wanted: dict[_Span, Microbatch] = {}
        self._reads: dict[_Span, Future[Batch]] = {}
        self._queue: SimpleQueue[tuple[Microbatch, Future[Batch]] | None] = SimpleQueue()
        self._read_lock = threading.Lock()
        self._thread = threading.Thread(target=self._read_ahead, name="read-ahead", daemon=True)
        self._thread.start()

    def schedule(self, upcoming: Sequence[Microbatch]) -> None:
        """Say what ``get`` will be asked for next, in order; replaces the last schedule.

        What was read, or is being read, for an earlier schedule is kept if it is among the next
        ``prefetch_batches`` of this one, and dropped otherwise. Never blocks.
        """
        self._wanted = {(each.start, each.stop): each for each in upcoming}
        self._slide_window()

    def get(self, microbatch: Microbatch) -> Batch:
        """Return a microbatch: the one read ahead, or else read here and now.

        Raises:
            Exception: whatever the dataset or ``to_batch`` raised for this microbatch.
        """
        span = (microbatch.start, microbatch.stop)
        self._wanted.pop(span, None)
        read = self._reads.pop(span, None)
        self._slide_window()
        if read is None or read.cancel():  # not begun: don't wait behind what comes later
            return self._read(microbatch)
        return read.result()

    def close(self) -> None:
        """Stop reading ahead; waits for a read under way, but not for one that hangs."""
        self.schedule(())
        self._queue.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _slide_window(self) -> None:
        """Make ``_reads`` hold exactly the next ``prefetch_batches`` of what is wanted."""
        window = dict(islice(self._wanted.items(), self._num_ahead))
        for span in self._reads.keys() - window.keys():
            self._reads.pop(span).cancel()
        for span in [span for span in window if span not in self._reads]:
            read = self._reads[span] = Future[Batch]()
            self._queue.put((window[span], read))

    def _read_ahead(self) -> None:
        """Body of the reader thread."""
        while (task := self._queue.get()) is not None:
            microbatch, read = task
            if not read.set_running_or_notify_cancel():
                continue
            try:
                batch = self._read(microbatch)
            except BaseException as error:  # noqa: BLE001  not swallowed: get() raises it
                read.set_exception(error)
            else:
                read.set_result(batch)

    def _read(self, microbatch: Microbatch) -> Batch:
        indices = self._order.indices(microbatch.start, microbatch.stop).tolist()
        with self._read_lock:  # a user's dataset need not be safe under two threads
            samples = read_samples(self._dataset, indices)
        return self._to_batch(samples, indices)
