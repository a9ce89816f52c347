import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from trainflow.data.loader import MicrobatchLoader
from trainflow.data.order import Microbatch, SampleOrder, deal_microbatches

TIMEOUT_S = 10.0


class GatedDataset:
    """Samples equal to their index; a read of a gated index waits until its gate opens."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.reads: list[tuple[int, ...]] = []
        self.readers: list[str] = []
        self.gates: dict[int, threading.Event] = {}
        self.errors: dict[int, Exception] = {}
        self.begun = threading.Semaphore(0)

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: list[int], /) -> dict[str, np.ndarray]:
        self.reads.append(tuple(indices))
        self.readers.append(threading.current_thread().name)
        self.begun.release()
        if indices[0] in self.gates:
            assert self.gates[indices[0]].wait(TIMEOUT_S)
        if indices[0] in self.errors:
            raise self.errors[indices[0]]
        return {"x": np.array(indices)}

    def wait_reads(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=TIMEOUT_S)


def span(start: int) -> Microbatch:
    return Microbatch(0, start, start + 2)


@pytest.fixture
def dataset() -> GatedDataset:
    return GatedDataset()


Start = Callable[[int], MicrobatchLoader]


@pytest.fixture
def start(dataset: GatedDataset) -> Iterator[Start]:
    loaders: list[MicrobatchLoader] = []

    def start_loader(prefetch_batches: int) -> MicrobatchLoader:
        order = SampleOrder(len(dataset), 0, "sequential")
        loaders.append(MicrobatchLoader(dataset, order, prefetch_batches=prefetch_batches))
        return loaders[-1]

    yield start_loader
    for gate in dataset.gates.values():
        gate.set()
    for loader in loaders:
        loader.close()
        assert not loader._thread.is_alive()


def test_scheduled_microbatches_are_read_ahead_by_the_reader_thread(
    dataset: GatedDataset, start: Start
) -> None:
    loader = start(2)
    loader.schedule([span(0), span(2), span(4)])
    dataset.wait_reads(2)
    assert loader.get(span(0)).inputs["x"].tolist() == [0, 1]
    assert set(dataset.readers) == {"read-ahead"}


def test_no_more_than_the_window_is_read_until_one_is_taken(
    dataset: GatedDataset, start: Start
) -> None:
    loader = start(2)
    loader.schedule([span(at) for at in range(0, 20, 2)])
    dataset.wait_reads(2)
    assert len(loader._reads) == 2
    loader.get(span(0))
    dataset.wait_reads(1)
    assert dataset.reads == [(0, 1), (2, 3), (4, 5)]


def test_what_was_not_scheduled_is_read_at_once(dataset: GatedDataset, start: Start) -> None:
    loader = start(2)
    assert loader.get(span(8)).indices == (8, 9)
    assert dataset.readers == [threading.current_thread().name]


def test_without_prefetch_every_read_is_the_callers(dataset: GatedDataset, start: Start) -> None:
    loader = start(0)
    loader.schedule([span(0)])
    assert loader.get(span(0)).indices == (0, 1)
    assert dataset.readers == [threading.current_thread().name]


def test_a_new_schedule_keeps_what_is_still_wanted_and_drops_the_rest(
    dataset: GatedDataset, start: Start
) -> None:
    loader = start(3)
    loader.schedule([span(0), span(2), span(4)])
    dataset.wait_reads(3)
    loader.schedule([span(4), span(6)])
    dataset.wait_reads(1)
    assert loader._reads.keys() == {(4, 6), (6, 8)}
    assert loader.get(span(4)).indices == (4, 5)
    assert loader.get(span(6)).indices == (6, 7)
    assert dataset.reads.count((4, 5)) == 1


def test_a_read_that_has_not_begun_is_not_waited_for_in_the_queue(
    dataset: GatedDataset, start: Start
) -> None:
    dataset.gates[0] = threading.Event()
    loader = start(3)
    loader.schedule([span(0), span(2), span(4)])
    dataset.wait_reads(1)  # the reader thread stands at the gate of 0, holding the dataset
    asked = threading.Event()
    loader._read_lock = _AnnouncingLock(loader._read_lock, asked)
    answers: list[tuple[int, ...]] = []
    caller = threading.Thread(
        target=lambda: answers.append(loader.get(span(4)).indices), name="caller"
    )
    caller.start()
    assert asked.wait(TIMEOUT_S)
    dataset.gates[0].set()
    caller.join(TIMEOUT_S)
    assert answers == [(4, 5)]
    assert dataset.readers[dataset.reads.index((4, 5))] == "caller"


class _AnnouncingLock:
    """A lock that says when somebody asks for it."""

    def __init__(self, lock: threading.Lock, asked: threading.Event) -> None:
        self._lock = lock
        self._asked = asked

    def __enter__(self) -> None:
        self._asked.set()
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


def test_a_read_under_way_is_waited_for_not_repeated(dataset: GatedDataset, start: Start) -> None:
    gate = dataset.gates[0] = threading.Event()
    loader = start(1)
    loader.schedule([span(0)])
    dataset.wait_reads(1)
    slide_window = loader._slide_window

    def slide_window_then_open_the_gate() -> None:
        slide_window()
        gate.set()

    loader._slide_window = slide_window_then_open_the_gate  # get() has taken the read by then
    assert loader.get(span(0)).indices == (0, 1)
    assert dataset.reads == [(0, 1)]


def test_a_readers_error_is_raised_where_the_batch_is_asked_for(
    dataset: GatedDataset, start: Start
) -> None:
    dataset.errors[2] = OSError("the disk is gone")
    loader = start(3)
    loader.schedule([span(0), span(2), span(4)])
    dataset.wait_reads(3)
    assert loader.get(span(0)).indices == (0, 1)
    with pytest.raises(OSError, match="the disk is gone") as raised:
        loader.get(span(2))
    assert raised.value is dataset.errors[2]
    assert loader.get(span(4)).indices == (4, 5)


def test_a_step_that_comes_again_gives_the_same_batch(start: Start) -> None:
    loader = start(2)
    first = loader.get(span(6))
    loader.schedule([span(6)])
    assert loader.get(span(6)).inputs["x"].tolist() == first.inputs["x"].tolist()


def test_every_sample_of_a_pass_is_used_once_while_the_world_changes() -> None:
    """Four worlds in turn, each step dealt anew and read by as many loaders as there are ranks."""
    dataset = GatedDataset(120)
    order = SampleOrder(120, 3, "shuffled")
    loaders = [MicrobatchLoader(dataset, order, prefetch_batches=2) for _ in range(4)]
    used: list[int] = []
    for step, world_size in enumerate([3, 2, 4, 1, 3]):
        consumed = step * 24
        for rank in range(world_size):
            share = deal_microbatches(consumed, 24, 5, world_size, rank)
            ahead = deal_microbatches(consumed + 24, 24, 5, world_size, rank)
            loaders[rank].schedule([*share, *ahead])
            for microbatch in share:
                used.extend(loaders[rank].get(microbatch).indices)
    for loader in loaders:
        loader.close()
    assert sorted(used) == list(range(120))
