"""A worker's death, seen through a socket.

Ray reports the death of an actor through its node; when the node dies with it, that takes seconds.
A worker therefore listens on a port and never accepts: whoever connects holds a connection that the
kernel closes the moment the process is gone.

The network may break that connection too. What tells the two apart is the port: the kernel of a
process that is gone refuses another connection, and that of one that lives takes it.

Process: `PresenceSocket` in every worker, `wait_gone` in the coordinator.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

# Connections wait here unaccepted, one for each coordinator that ever watched.
_BACKLOG = 1024

_FIRST_WITHIN_S = 5.0
# Three tries take about a second; each sends a packet of its own, as one may be lost.
_WITHIN_S = _AGAIN_AFTER_S = 0.3
_NUM_TRIES = 3
_TAKEN_WITHIN_S = 0.01
_SHORT_S = 1.0
_PAUSE_S = 0.05
_PAUSE_AT_MOST_S = 5.0
# What keeps whoever is between from forgetting a connection that carries nothing.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
)
# The coordinator's own trouble says nothing of the worker; after a reset the next try tells.
_NO_SILENCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNRESET})


class PresenceSocket:
    """Listens for as long as the process lives."""

    def __init__(self, host: str):
        self._socket = socket.create_server((host, 0), backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Stop listening; watchers see the process as gone."""
        self._socket.close()


class _UnansweredError(Exception):
    """Nobody has taken or refused a connection."""


def _is_never_quiet() -> bool:
    return False


async def wait_gone(host: str, port: int, is_quiet: Callable[[], bool] = _is_never_quiet) -> str:
    """Return once the process that listens at ``host``:``port`` is gone, and how that was seen.

    It is gone if its port refuses a connection, or if one breaks and for a second nobody answers
    another. That nobody has answered yet, before there ever was one, says nothing.

    Args:
        host: where it is.
        port: that it listens at.
        is_quiet: whether nothing else has been heard from there for seconds either. Then one try
            is enough: a network that has lost one packet has not lost all those as well.
    """

    def tries_again(num_unanswered: int) -> bool:
        return num_unanswered < (1 if is_quiet() else _NUM_TRIES)

    try:
        connection = await _connect(host, port, within_s=_FIRST_WITHIN_S)
    except ConnectionRefusedError:
        return "its presence port refused a connection"
    pause_s = 0.0
    while True:
        begun_s = _now_s() + pause_s
        how = await _wait_broken(*connection, pause_s)
        # Whoever breaks all of them at once is not to be asked all the time.
        is_short = _now_s() - begun_s < _SHORT_S
        pause_s = min(max(2 * pause_s, _PAUSE_S), _PAUSE_AT_MOST_S) if is_short else 0.0
        try:
            connection = await _connect(host, port, within_s=_WITHIN_S, tries_again=tries_again)
        except ConnectionRefusedError:
            return f"its presence connection {how}, and its port refused another"
        except _UnansweredError:
            return f"its presence connection {how}, and nobody answered at its port"


def _always(_: int) -> bool:
    return True


async def _connect(
    host: str, port: int, *, within_s: float, tries_again: Callable[[int], bool] = _always
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port.

    Args:
        host: where it is.
        port: the port.
        within_s: how long an answer is waited for.
        tries_again: whether there is another try after so many that nobody has answered.

    Raises:
        ConnectionRefusedError: nobody listens there.
        _UnansweredError: no try was answered.
    """
    num_unanswered = 0
    while num_unanswered == 0 or tries_again(num_unanswered):
        again_at_s = _now_s() + _AGAIN_AFTER_S
        try:
            reader, writer = await _open(host, port, within_s)
        except ConnectionRefusedError:
            raise
        except OSError as error:
            num_unanswered += error.errno not in _NO_SILENCE
            await asyncio.sleep(again_at_s - _now_s())
        else:
            for option in _KEEPALIVE:
                writer.get_extra_info("socket").setsockopt(*option)
            return reader, writer
    raise _UnansweredError


async def _open(
    host: str, port: int, within_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection in time; what has come while this process stood still was in time.

    Raises:
        OSError: it can't be opened; TimeoutError, which is one, if nobody has answered.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        # Where the event loop is late, its kernel may have what it waits for: it takes that first.
        late = loop.call_later(within_s, lambda: limit.reschedule(loop.time() + _TAKEN_WITHIN_S))
        try:
            return await asyncio.open_connection(host, port)
        finally:
            late.cancel()


async def _wait_broken(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float
) -> str:
    """Return once a connection is no more, and what has become of it; not before a pause."""
    try:
        if pause_s:
            await asyncio.sleep(pause_s)
        await reader.read()
    except OSError as error:
        return f"broke ({error.strerror or error})"
    finally:
        writer.close()
    return "was closed"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
