import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainflow.communication.os_threads import num_runs, thread_ids

TIMEOUT_S = 10.0


class Waiter:
    """A thread that waits, and each time that it is told to, comes round to waiting again."""

    def __init__(self):
        before = thread_ids()
        self._again = threading.Semaphore(0)
        self._came = threading.Semaphore(0)
        self._ended = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._came.acquire(timeout=TIMEOUT_S)
        self.ids = frozenset({self.thread.native_id or 0})
        assert self.ids <= thread_ids() - before

    def come_round(self, *, ended: bool = False) -> None:
        self._ended = ended
        self._again.release()
        assert self._came.acquire(timeout=TIMEOUT_S)

    def end(self) -> None:
        """Return when the kernel has no such thread any more: `join` returns a little before."""
        self.come_round(ended=True)
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.ids & thread_ids():
            assert time.monotonic() < deadline_s

    def _run(self) -> None:
        while not self._ended:
            self._came.release()
            self._again.acquire()
        self._came.release()


@pytest.fixture
def name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def settled(look: Callable[[], int | None]) -> int:
    """Look until the thread stands: it says that it came round before it waits."""
    deadline_s = time.monotonic() + TIMEOUT_S
    before, now = None, look()
    while now is None or now != before:
        assert time.monotonic() < deadline_s
        before, now = now, look()
    return now


def test_one_that_waits_has_not_run_until_it_does(name: str):
    waiter = Waiter()
    first = settled(lambda: num_runs(waiter.ids, name))
    assert num_runs(waiter.ids, name) == first
    waiter.come_round()
    assert settled(lambda: num_runs(waiter.ids, name)) > first
    waiter.come_round(ended=True)


def test_one_that_works_is_not_said_to_wait(name: str):
    me = frozenset({threading.get_native_id()})
    assert num_runs(me, name) is None


def test_nobody_of_that_name_or_nobody_left_is_nothing_to_rely_on(name: str):
    waiter = Waiter()
    with pytest.raises(LookupError, match="another"):
        num_runs(waiter.ids, "another")
    with pytest.raises(LookupError):
        num_runs(frozenset(), name)
    waiter.end()
    with pytest.raises(LookupError):
        num_runs(waiter.ids, name)
