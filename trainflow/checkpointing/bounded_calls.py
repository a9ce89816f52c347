"""Calls that may never come back: their caller waits for so long, and no longer.

A file system over the network can hold a thread in the kernel for as long as its server is silent,
and nothing ends that. So what might wait for a store runs in a thread beside the caller's. A caller
that gives up leaves that thread behind; once it comes back, it finds that nobody waits, and is used
again. Only so many are left behind at a time: then every call is refused at once, until one of them
comes back. What a call calls in turn runs in its thread, whoever's it is: one bound holds for all
of it.

Process: any.  Threads: its own, which don't hold up the end of the process.
Blocks: until the call is done or its time is over.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from trainflow.clock import SYSTEM_CLOCK

T = TypeVar("T")

_own = threading.local()  # its `call`: what this thread is at, if it is one of those here

MAX_LEFT_BEHIND = 16
"""So many threads of a process may be held by a store that doesn't answer."""

_ANSWER_WITHIN_S = 60.0
_BYTES_PER_S = 8 * 1024 * 1024
_MAX_IDLE = 16
_LOOK_EVERY_S = 0.2


def patience_s(num_bytes: int = 0) -> float:
    """Return how long a store may take over so many bytes before it counts as one that hangs."""
    return _ANSWER_WITHIN_S + num_bytes / _BYTES_PER_S


class Call:
    """One call, as the thread that makes it sees it."""

    def __init__(self, work: Callable[["Call"], Any], within_s: float):
        self._work = work
        self._giving_up = threading.Lock()
        self.done = threading.Event()
        self.is_awaited = True
        self.expect_within(within_s)
        self.result: Any = None
        self.error: BaseException | None = None

    def expect_within(self, within_s: float) -> None:
        """Have the caller wait for so long from now."""
        self.within_s = within_s
        self._expires_at_s = SYSTEM_CLOCK.monotonic_s() + within_s

    @property
    def left_s(self) -> float:
        """How long the caller will wait yet."""
        return max(0.0, self._expires_at_s - SYSTEM_CLOCK.monotonic_s())

    def give_up(self) -> None:
        """Wait no longer: from here on nothing that the caller lent is written to."""
        with self._giving_up:
            self.is_awaited = False

    def deliver(self, put: Callable[[], None]) -> None:
        """Write to what the caller lent, who doesn't give up meanwhile.

        Raises:
            TimeoutError: it has given up.
        """
        with self._giving_up:
            self.require_awaited()
            put()

    def require_awaited(self) -> None:
        """Go on only if the caller still waits, so that what it lent is still what it was.

        Raises:
            TimeoutError: it has given up.
        """
        if not self.is_awaited:
            raise TimeoutError("whoever asked for it has given up")

    def make(self) -> None:
        """Do the work, and keep what comes of it."""
        try:
            self.result = self._work(self)
        except BaseException as error:  # noqa: BLE001  raised where it was asked for
            self.error = error


class Task(NamedTuple):
    """One of several things to do, and how long it may take."""

    within_s: float
    work: Callable[[Call], object]


class BoundedCalls:
    """Makes calls in threads of its own."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all threads: those of the process that this one was forked from aren't here."""
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Call]] = []
        self._num_left_behind = 0

    @property
    def num_left_behind(self) -> int:
        """How many calls are under way that nobody waits for."""
        return self._num_left_behind

    def call(self, within_s: float, work: Callable[[Call], T]) -> T:
        """Do ``work`` and return what it returns, or raise what it raises.

        Raises:
            TimeoutError: it isn't done in time, or too many before it never came back.
            OSError: no thread is to be had for it.
        """
        outer: Call | None = getattr(_own, "call", None)
        if outer is not None:
            return work(outer)
        return self._wait(self._hand_over(Call(work, within_s)))

    def call_all(self, tasks: Sequence[Task], at_a_time: int) -> None:
        """Do all tasks, so many at a time; once one has failed, no other is begun.

        Raises:
            TimeoutError: a task isn't done in time, or too many calls before never came back.
            OSError: too few threads are to be had.
            Exception: what the first that failed has raised.
        """
        left = deque(tasks)

        def work(call: Call) -> None:
            while call.is_awaited and (task := _take(left)) is not None:
                call.expect_within(task.within_s)
                try:
                    task.work(call)
                except BaseException:
                    left.clear()
                    raise

        patience = max((task.within_s for task in tasks), default=0.0)
        calls: list[Call] = []
        errors: list[Exception] = []
        try:
            calls.extend(  # as far as threads are to be had
                self._hand_over(Call(work, patience)) for _ in range(min(at_a_time, len(tasks)))
            )
            for call in calls:
                error = self._outcome(call)
                if error is not None:
                    left.clear()
                    errors.append(error)
        finally:  # if refused or interrupted half-way: nothing more reaches what the caller lent
            left.clear()
            for call in calls:
                self._leave_behind(call)
        if errors:
            raise errors[0]

    def _outcome(self, call: Call) -> Exception | None:
        try:
            self._wait(call)
        except Exception as error:  # noqa: BLE001  raised once all threads have stopped
            return error
        return None

    def _wait(self, call: Call) -> Any:  # noqa: ANN401  what its work returns
        # Looked at in between: what is begun later may have less time than what is under way.
        while not call.done.wait(min(call.left_s, _LOOK_EVERY_S)):
            if not call.left_s and self._leave_behind(call):
                raise TimeoutError(f"no answer within {call.within_s:.0f} s")
        try:
            if call.error is not None:
                raise call.error
            return call.result
        finally:
            call.error = None  # its traceback leads back here: what the caller lent would stay

    def _leave_behind(self, call: Call) -> bool:
        """Wait no longer; False if it is done."""
        with self._lock:
            if call.done.is_set():
                return False
            self._num_left_behind += call.is_awaited
            call.give_up()
            return True

    def _hand_over(self, call: Call) -> Call:
        with self._lock:
            if self._num_left_behind >= MAX_LEFT_BEHIND:
                raise TimeoutError(
                    f"{self._num_left_behind} calls before it are still without an answer"
                )
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = queue.SimpleQueue[Call]()
            thread = threading.Thread(target=self._serve, args=(calls,), name="store", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(
                    f"got no thread ({error}), expected one more; raise this machine's limits of "
                    "threads and memory, or end other processes"
                ) from error
        calls.put(call)
        return call

    def _serve(self, calls: queue.SimpleQueue[Call]) -> None:
        """Make one call after the other, as long as there are few enough to be kept."""
        while True:
            call = calls.get()
            _own.call = call
            call.make()
            _own.call = None
            with self._lock:
                self._num_left_behind -= not call.is_awaited
                stays = len(self._idle) < _MAX_IDLE
                if stays:
                    self._idle.append(calls)
                call.done.set()
            del call  # and with it what the caller lent
            if not stays:
                return


def _take(tasks: deque[Task]) -> Task | None:
    try:
        return tasks.popleft()
    except IndexError:
        return None


STORE_CALLS = BoundedCalls()
"""The calls of this process to stores."""

PEER_CALLS = BoundedCalls()
"""Those to the memory of other nodes, which a store that hangs is not to hold up."""

for _calls in (STORE_CALLS, PEER_CALLS):
    os.register_at_fork(after_in_child=_calls.begin_anew)
