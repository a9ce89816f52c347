"""When a connection is broken off: by what its client takes, look by look."""

from collections.abc import Callable
from typing import Any, cast

from trainflow.service.watched_transport import WatchedTransport


class Connection:
    """A transport and its loop: a client takes, and time passes, where a test says so.

    Attributes:
        num_waiting: bytes that the client has yet to take.
        is_aborted: it was broken off.
    """

    def __init__(self) -> None:
        self.num_waiting = 0
        self.is_aborted = False
        self._due: list[Callable[[], None]] = []
        both = cast("Any", self)
        self.watched = WatchedTransport(both, both, 30.0)

    def write(self, data: bytes) -> None:
        self.num_waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.num_waiting

    def get_extra_info(self, name: str) -> str:
        return f"its {name}"

    def abort(self) -> None:
        self.is_aborted = True

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        assert delay_s == 30.0
        self._due.append(call)
        return self

    def cancel(self) -> None:
        self._due.clear()

    def look(self, *, takes: int = 0) -> bool:
        """Have the client take something, and a look's time pass; returns whether there is one."""
        self.num_waiting -= takes
        due, self._due = self._due, []
        assert len(due) <= 1
        for call in due:
            call()
        return bool(due)


def test_who_takes_nothing_is_broken_off_at_the_second_look():
    connection = Connection()
    connection.watched.write(b"x" * 100)
    assert connection.look()
    assert not connection.is_aborted
    assert connection.look()
    assert connection.is_aborted
    assert not connection.look()


def test_what_is_sent_on_is_no_sign_of_who_takes_nothing():
    connection = Connection()
    for _ in range(3):
        connection.watched.write(b": alive")
        connection.look()
    assert connection.is_aborted


def test_who_takes_a_little_each_time_goes_on():
    connection = Connection()
    connection.watched.write(b"x" * 100)
    for _ in range(33):
        connection.look(takes=1)
        connection.look()
        connection.watched.write(b"xx")
    assert not connection.is_aborted


def test_it_looks_only_while_something_waits_to_be_taken():
    connection = Connection()
    assert not connection.look()
    for _ in range(3):
        connection.watched.write(b"x" * 100)
        assert connection.look(takes=100)
        assert not connection.look()
    assert not connection.is_aborted


def test_one_that_is_gone_is_looked_at_no_more():
    connection = Connection()
    connection.watched.stop_watching()
    connection.watched.write(b"x")
    connection.watched.stop_watching()
    assert not connection.look()


def test_the_rest_is_the_transports():
    assert Connection().watched.get_extra_info("socket") == "its socket"
