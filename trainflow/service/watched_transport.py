"""A connection that is broken off once its client takes nothing of what it is sent.

asyncio keeps what a client doesn't take for as long as that holds the connection, also after it was
closed: it waits until all of it is flushed.

Process: a replica of the service.  Thread: its event loop; each connection has one of these.
"""

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)

_IDLE_LOOKS = 2


class WatchedTransport:
    """A transport; what it doesn't do itself the one does that it is made of.

    While something waits to be taken it looks how much was, each ``look_every_s``. After two looks
    that have found no more taken than before, the connection is aborted.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, look_every_s: float
    ):
        self._transport = transport
        self._loop = loop
        self._look_every_s = look_every_s
        self._num_written = 0
        self._most_taken = 0
        self._num_idle = 0
        self._watch: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a transport has
        """Return what the transport has."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, and see to it that it is taken."""
        self._num_written += len(data)
        self._transport.write(data)
        if self._watch is None and self._transport.get_write_buffer_size() > 0:
            self._num_idle, self._most_taken = 0, self._count_taken()
            self._look_later()

    def stop_watching(self) -> None:
        """Look no more: the connection is gone."""
        if self._watch is not None:
            self._watch.cancel()

    def _look_later(self) -> None:
        self._watch = self._loop.call_later(self._look_every_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._transport.get_write_buffer_size() == 0:
            return
        taken = self._count_taken()
        self._num_idle = 0 if taken > self._most_taken else self._num_idle + 1
        self._most_taken = max(self._most_taken, taken)
        if self._num_idle < _IDLE_LOOKS:
            self._look_later()
            return
        silent_s = _IDLE_LOOKS * self._look_every_s
        logger.warning("broke off a connection whose client took nothing for %g s", silent_s)
        self._transport.abort()

    def _count_taken(self) -> int:
        """Return how many bytes are out; with TLS, what is added to them counts against it."""
        return self._num_written - self._transport.get_write_buffer_size()
