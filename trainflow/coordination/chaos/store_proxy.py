"""A proxy before a store that can stand still: connections stay open, and nothing passes.

Process: driver.  Threads: one takes connections, two pass the bytes of each on.
Blocks: `close`, for a moment.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

_CHUNK_BYTES = 64 * 1024
_CONNECT_WITHIN_S = 10.0


class StoreProxy:
    """Passes on what comes to it, unless it is held.

    Args:
        endpoint: of the store: ``http://HOST:PORT``.

    Attributes:
        endpoint: where to reach the store through it.
        num_held: how often something had to wait, as it was held.
        num_waiting: how much does so now.
    """

    def __init__(self, endpoint: str):
        parts = urlsplit(endpoint)
        self._store = (parts.hostname or "", parts.port or 80)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        self.num_held = self.num_waiting = 0
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._take, name="store-proxy", daemon=True).start()

    def hold(self) -> None:
        """Pass nothing on from now on; what is sent meanwhile waits."""
        self._passes.clear()

    def let_go(self) -> None:
        """Pass on what waits, and all that comes."""
        self._passes.set()

    def close(self) -> None:
        """End every connection, and take no more."""
        with self._lock:
            self._closed = True
            _shut(self._server)  # wakes whoever waits for a connection
            self._server.close()
            for each in self._open:
                _shut(each)
        self._passes.set()

    def _take(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            self._start(self._serve, client)

    def _wait(self) -> None:
        if self._passes.is_set():
            return
        with self._lock:
            self.num_held += 1
            self.num_waiting += 1
        self._passes.wait()
        with self._lock:
            self.num_waiting -= 1

    def _serve(self, client: socket.socket) -> None:
        self._wait()
        try:
            store = socket.create_connection(self._store, _CONNECT_WITHIN_S)
        except OSError:  # as the client would have found
            client.close()
            return
        store.settimeout(None)
        with self._lock:
            self._open |= {client, store}
            if self._closed:
                _shut(client)
        self._start(self._pass_on, client, store)
        self._pass_on(store, client)
        with self._lock:
            self._open -= {client, store}
        client.close()
        store.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what one end sends, until it sends no more."""
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._wait()
                sink.sendall(data)
        _shut(source)
        _shut(sink)

    def _start(self, serve: Callable[..., None], *sockets: socket.socket) -> None:
        threading.Thread(target=serve, args=sockets, name="store-proxy", daemon=True).start()


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
