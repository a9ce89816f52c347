"""A store that never answers holds nobody for ever, and only so many threads."""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from trainflow.checkpointing import bounded_calls
from trainflow.checkpointing.bounded_calls import MAX_LEFT_BEHIND, BoundedCalls, Call, Task
from trainflow.checkpointing.store_files import LocalFiles

SHORT_S = 0.02


@pytest.fixture
def calls() -> BoundedCalls:
    return BoundedCalls()


class Hanging:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.ended = threading.Semaphore(0)
        self.num_awaited = 0

    def __call__(self, call: Call) -> None:
        self.go_on.wait(30)
        try:
            call.require_awaited()
            self.num_awaited += 1
        finally:
            self.ended.release()


def test_it_returns_what_the_work_returns_and_raises_what_it_raises(calls: BoundedCalls):
    assert calls.call(5, lambda _: 7) == 7
    with pytest.raises(KeyError, match="gone"):
        calls.call(5, lambda _: {}["gone"])
    assert calls.num_left_behind == 0


def test_one_thread_serves_call_after_call(calls: BoundedCalls):
    idents = {calls.call(5, lambda _: threading.get_ident()) for _ in range(20)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


def test_what_a_call_calls_runs_in_its_thread(calls: BoundedCalls):
    def outer(call: Call) -> tuple[int, bool]:
        ident, inner = calls.call(0, lambda inner: (threading.get_ident(), inner))
        return ident == threading.get_ident(), inner is call

    assert calls.call(5, outer) == (True, True)


def test_what_is_lent_is_not_written_to_once_it_is_given_up(calls: BoundedCalls):
    hanging, refused = Hanging(), threading.Semaphore(0)
    lent = bytearray(4)

    def work(call: Call) -> None:
        hanging.go_on.wait(30)
        try:
            call.deliver(lambda: lent.__setitem__(slice(None), b"late"))
        except TimeoutError:
            refused.release()

    with pytest.raises(TimeoutError, match="no answer"):
        calls.call(SHORT_S, work)
    hanging.go_on.set()
    assert refused.acquire(timeout=5)
    assert lent == bytes(4)


class TestCallAll:
    def test_all_are_done_so_many_at_a_time(self, calls: BoundedCalls):
        together = threading.Barrier(3)
        done: list[int] = []

        def work(index: int, _call: Call) -> None:
            together.wait(10)
            done.append(index)

        calls.call_all([Task(30, partial(work, index)) for index in range(9)], at_a_time=3)
        assert sorted(done) == list(range(9))

    def test_nothing_to_do_is_done(self, calls: BoundedCalls):
        calls.call_all([], at_a_time=3)

    def test_once_one_has_failed_none_is_begun_and_none_goes_on(self, calls: BoundedCalls):
        failed, begun, ended = threading.Event(), [], []

        def fails(_call: Call) -> None:
            begun.append("fails")
            failed.set()
            raise KeyError("gone")

        def goes_on(_call: Call) -> None:
            begun.append("goes on")
            failed.wait(10)
            ended.append("goes on")

        tasks = [Task(30, goes_on), Task(30, fails), *[Task(30, goes_on)] * 50]
        with pytest.raises(KeyError, match="gone"):
            calls.call_all(tasks, at_a_time=2)
        assert len(begun) < len(tasks)
        assert len(ended) == len(begun) - 1
        assert calls.num_left_behind == 0

    def test_where_only_some_threads_are_to_be_had_nothing_is_written_afterwards(
        self, calls: BoundedCalls, monkeypatch: pytest.MonkeyPatch
    ):
        begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
        lent, hand_over = bytearray(4), calls._hand_over

        def hand_over_one(call: Call) -> Call:
            if begun.is_set():
                raise TimeoutError("16 calls before it are still without an answer")
            handed = hand_over(call)
            assert begun.wait(10)
            return handed

        def work(call: Call) -> None:
            begun.set()
            go_on.wait(10)
            try:
                call.deliver(lambda: lent.__setitem__(slice(None), b"late"))
            finally:
                over.set()

        monkeypatch.setattr(calls, "_hand_over", hand_over_one)
        with pytest.raises(TimeoutError, match="16 calls before it"):
            calls.call_all([Task(30, work)] * 5, at_a_time=2)
        assert calls.num_left_behind == 1
        go_on.set()
        assert over.wait(10)
        assert lent == bytes(4)

    def test_each_has_a_bound_of_its_own(self, calls: BoundedCalls):
        hanging = Hanging()
        with pytest.raises(TimeoutError, match="no answer"):
            calls.call_all([Task(30, lambda _: None), Task(SHORT_S, hanging)], at_a_time=1)
        assert calls.num_left_behind == 1
        hanging.go_on.set()
        assert hanging.ended.acquire(timeout=5)
        assert hanging.num_awaited == 0


def test_a_call_that_hangs_is_left_behind_and_knows_it(calls: BoundedCalls):
    hanging = Hanging()
    with pytest.raises(TimeoutError, match="no answer within"):
        calls.call(SHORT_S, hanging)
    assert calls.num_left_behind == 1
    assert calls.call(5, lambda _: "others go on") == "others go on"
    hanging.go_on.set()
    assert hanging.ended.acquire(timeout=5)
    assert hanging.num_awaited == 0
    while calls.num_left_behind:
        calls.call(5, lambda _: None)


def test_only_so_many_are_left_behind(calls: BoundedCalls):
    hanging = Hanging()
    for _ in range(MAX_LEFT_BEHIND):
        with pytest.raises(TimeoutError, match="no answer"):
            calls.call(SHORT_S, hanging)
    before = threading.active_count()
    with pytest.raises(TimeoutError, match=f"{MAX_LEFT_BEHIND} calls before it"):
        calls.call(5, lambda _: None)
    assert threading.active_count() == before
    hanging.go_on.set()
    for _ in range(MAX_LEFT_BEHIND):
        assert hanging.ended.acquire(timeout=5)
    give_up = threading.Event()
    while calls.num_left_behind >= MAX_LEFT_BEHIND:
        give_up.wait(0.01)
    assert calls.call(5, lambda _: "again") == "again"


def test_a_thread_that_is_not_to_be_had_is_no_fault_of_the_work(
    calls: BoundedCalls, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match=r"got no thread.*expected one more"):
            calls.call(5, lambda _: None)
    assert calls.num_left_behind == 0
    assert calls.call(5, lambda _: "again") == "again"


def test_what_a_call_calls_runs_in_its_thread_whoevers_that_is(calls: BoundedCalls):
    others = BoundedCalls()
    assert calls.call(5, lambda call: others.call(5, lambda inner: inner is call))


def test_a_hanging_call_does_not_keep_a_process_from_ending(tmp_path: Path):
    program = """
import threading
from trainflow.checkpointing.bounded_calls import STORE_CALLS
try:
    STORE_CALLS.call(0.01, lambda call: threading.Event().wait())
except TimeoutError:
    print("given up")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "given up\n"
    assert done.returncode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    calls = bounded_calls.STORE_CALLS
    assert calls.call(5, lambda _: 1) == 1
    pid = os.fork()
    if pid == 0:
        os._exit(calls.call(5, lambda _: 0))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_what_is_written_after_its_caller_gave_up_takes_no_name(tmp_path: Path, monkeypatch):
    """The caller's memory may hold something else by then."""
    hanging, flush = Hanging(), os.fsync

    def flush_later(descriptor: int) -> None:
        hanging.go_on.wait(30)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", flush_later)
    monkeypatch.setattr(bounded_calls, "_ANSWER_WITHIN_S", SHORT_S)
    lent = bytearray(b"snapshot")
    with pytest.raises(TimeoutError):
        LocalFiles().write_whole(str(tmp_path / "chunk"), memoryview(lent))
    lent[:] = b"the next"
    hanging.go_on.set()
    while bounded_calls.STORE_CALLS.num_left_behind:
        hanging.ended.acquire(timeout=0.01)
    assert list(tmp_path.iterdir()) == []
