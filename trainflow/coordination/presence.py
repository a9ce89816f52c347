"""A worker's death, seen through a socket.

Ray reports the death of an actor through its node; when the node dies with it, that takes seconds.
A worker therefore listens on a port and never accepts: whoever connects holds a connection that the
kernel closes the moment the process is gone.

Process: `PresenceSocket` in every worker, `wait_gone` in the coordinator.
"""

import asyncio
import socket

# Connections wait here unaccepted, one for each coordinator that ever watched.
_BACKLOG = 1024


class PresenceSocket:
    """Listens for as long as the process lives."""

    def __init__(self, host: str):
        self._socket = socket.create_server((host, 0), backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Stop listening; watchers see the process as gone."""
        self._socket.close()


async def wait_gone(host: str, port: int) -> str:
    """Return once the process that listens at ``host``:``port`` is gone, and how that was seen."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return f"its presence port refused a connection ({error.strerror or error})"
    try:
        await reader.read()
    except OSError as error:
        return f"its presence connection broke ({error.strerror or error})"
    finally:
        writer.close()
    return "its presence connection was closed"
