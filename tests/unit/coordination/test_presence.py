"""Whether a process is gone or the network has broken a connection, with real sockets."""

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.coordination.fakes import until
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import presence as module
from trainflow.coordination.presence import PresenceSocket, wait_gone

HOST = "127.0.0.1"
RESET_WHEN_CLOSED = struct.pack("ii", 1, 0)


class Port(PresenceSocket):
    """A presence port, and connections to it that a test can break."""

    def __init__(self) -> None:
        super().__init__(HOST)
        self._socket.setblocking(False)
        self.taken: list[socket.socket] = []
        self.made: list[socket.socket] = []

    def has_taken(self, count: int) -> bool:
        """Whether so many connections were made, as either end knows by now."""
        try:
            self.taken.append(self._socket.accept()[0])
        except BlockingIOError:
            return min(len(self.taken), len(self.made)) >= count
        return self.has_taken(count)

    def num_waiting(self) -> int:
        """Return how many wait to be accepted, which of a port that listens is `tcpi_unacked`."""
        return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24]

    def break_newest(self, *, resets: bool) -> None:
        """Do what a firewall does that has forgotten a connection."""
        if resets:
            self.taken[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_WHEN_CLOSED)
        self.taken[-1].close()

    def close(self) -> None:
        super().close()
        for each in self.taken:
            each.close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Act = Callable[[Port, "asyncio.Task[str]"], Awaitable[None]]


def watch(act: Act, *, is_quiet: bool = False) -> str | None:
    """Have a port watched while something happens; returns how its end was seen, if it was."""

    async def main() -> str | None:
        port, connect = Port(), asyncio.open_connection

        async def note(host: str, number: int) -> Connection:
            reader, writer = await connect(host, number)
            port.made.append(writer.get_extra_info("socket"))
            return reader, writer

        patch = pytest.MonkeyPatch()
        patch.setattr(module.asyncio, "open_connection", note)
        watching = asyncio.create_task(wait_gone(HOST, port.port, lambda: is_quiet))
        try:
            await act(port, watching)
            return watching.result() if watching.done() else None
        finally:
            watching.cancel()
            patch.undo()
            port.close()

    return asyncio.run(main())


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
def test_a_connection_that_breaks_is_no_death_and_the_next_one_is_watched(*, resets: bool):
    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        for number in range(1, 4):
            await until(lambda count=number: port.has_taken(count))
            port.break_newest(resets=resets)
        await until(lambda: port.has_taken(4))
        assert not watching.done()
        port.close()
        await watching

    text = watch(act)
    assert text is not None
    assert text.startswith("its presence connection ")
    assert text.endswith("and its port refused another")


def test_a_process_that_ends_is_gone(monkeypatch: pytest.MonkeyPatch):
    """Its kernel resets what nobody has accepted, and refuses what comes then."""
    monkeypatch.setattr(module, "_AGAIN_AFTER_S", 60.0)  # nobody is waited for

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.num_waiting() == 1 and port.made)
        port.close()
        await asyncio.wait_for(watching, 5.0)

    text = watch(act)
    assert text == (
        "its presence connection broke (Connection reset by peer), and its port refused another"
    )


def test_who_refuses_the_first_connection_is_gone():
    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        port.close()
        await watching

    assert watch(act) == "its presence port refused a connection"


def fail_to_connect(
    monkeypatch: pytest.MonkeyPatch, error: OSError, *, after: int, times: int
) -> list[int]:
    """Have connections fail, but for the first ones; returns the numbers of all."""
    connect, tried = asyncio.open_connection, list[int]()

    async def open_connection(host: str, port: int) -> Connection:
        tried.append(len(tried))
        if after <= tried[-1] < after + times:
            raise error
        return await connect(host, port)

    monkeypatch.setattr(module.asyncio, "open_connection", open_connection)
    monkeypatch.setattr(module, "_AGAIN_AFTER_S", 0.001)
    monkeypatch.setattr(module, "_WITHIN_S", 60.0)
    return tried


NO_ROUTE = OSError(errno.EHOSTUNREACH, "No route to host")
NO_FILES = OSError(errno.EMFILE, "Too many open files")
RESET = OSError(errno.ECONNRESET, "Connection reset by peer")


@pytest.mark.parametrize(("is_quiet", "num_tries"), [(False, 3), (True, 1)])
def test_who_is_not_reached_once_a_connection_has_broken_is_gone(
    monkeypatch: pytest.MonkeyPatch, *, is_quiet: bool, num_tries: int
):
    tried = fail_to_connect(monkeypatch, NO_ROUTE, after=1, times=100)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))
        port.break_newest(resets=True)
        await watching

    text = watch(act, is_quiet=is_quiet)
    assert text is not None
    assert text.endswith("and nobody answered at its port")
    assert len(tried) == 1 + num_tries


def test_one_answer_of_three_is_enough(monkeypatch: pytest.MonkeyPatch):
    fail_to_connect(monkeypatch, NO_ROUTE, after=1, times=2)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))
        port.break_newest(resets=True)
        await until(lambda: port.has_taken(2))

    assert watch(act) is None


def test_who_answers_at_once_lives_however_quiet_its_node_is():
    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))
        port.break_newest(resets=True)
        await until(lambda: port.has_taken(2))

    assert watch(act, is_quiet=True) is None


def test_who_has_answered_while_the_coordinator_stood_still_lives(monkeypatch: pytest.MonkeyPatch):
    within_s = 0.02
    monkeypatch.setattr(module, "_WITHIN_S", within_s)
    monkeypatch.setattr(module, "_TAKEN_WITHIN_S", 5.0)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        connect = asyncio.open_connection

        async def open_connection(host: str, number: int) -> Connection:
            asyncio.get_running_loop().call_soon(SYSTEM_CLOCK.sleep, 3 * within_s)
            return await connect(host, number)

        await until(lambda: port.has_taken(1))
        monkeypatch.setattr(module.asyncio, "open_connection", open_connection)
        port.break_newest(resets=True)
        await until(lambda: watching.done() or port.has_taken(2))

    assert watch(act, is_quiet=True) is None


def test_that_nobody_has_answered_yet_says_nothing(monkeypatch: pytest.MonkeyPatch):
    fail_to_connect(monkeypatch, NO_ROUTE, after=0, times=20)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))

    assert watch(act) is None


@pytest.mark.parametrize("error", [NO_FILES, RESET], ids=["no files left", "reset"])
def test_what_is_no_silence_takes_nobody_for_dead(monkeypatch: pytest.MonkeyPatch, error: OSError):
    fail_to_connect(monkeypatch, error, after=1, times=20)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))
        port.break_newest(resets=True)
        await until(lambda: port.has_taken(2))

    assert watch(act) is None


def test_connections_that_all_break_at_once_are_tried_ever_later(monkeypatch: pytest.MonkeyPatch):
    pauses_s: list[float] = []
    pause = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        pauses_s.append(delay_s)
        await pause(0)

    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        for number in range(1, 11):
            async with asyncio.timeout(5.0):
                while not port.has_taken(number):
                    await pause(0.001)
            port.break_newest(resets=True)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    assert watch(act) is None
    assert pauses_s[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses_s) == 5.0


def test_a_connection_that_carries_nothing_is_kept_alive():
    async def act(port: Port, watching: "asyncio.Task[str]") -> None:
        await until(lambda: port.has_taken(1))
        assert port.made[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert port.made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60

    assert watch(act) is None
