"""An HTTP server that shares its address with others like it, in a thread of its own.

Each replica has one. They listen at one address by SO_REUSEPORT, and the kernel gives each
connection to one of them: no process stands between that every request would pass. One that dies
takes its connections along; the next ones go to the others.

Process: a replica of the service.  Thread: one of its own, with the app's event loop.  Fails: the
thread ends, or is held up; `require_running` tells.
"""

import asyncio
import logging
import socket
import ssl
import threading

import uvicorn
from starlette.types import ASGIApp

from trainflow.errors import ConfigError, ConflictError, TrainFlowError
from trainflow.service.http_protocol import BoundedHttpProtocol, bound_protocol
from trainflow.service.settings import HttpSettings

logger = logging.getLogger(__name__)

STIRS_WITHIN_S = 5.0
"""Seconds for which the event loop may be held up before it counts as dead."""

_BACKLOG = 2048
_IDLE_FOR_S = 75  # longer than clients and proxies keep a connection, so that they close it
_ENDS_WITHIN_S = 2


def require_certificate(http: HttpSettings) -> None:
    """Refuse a certificate or a key that can't be used.

    Raises:
        ConfigError: a file is missing or none of the kind, or they don't belong together.
    """
    if http.certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            http.certificate,
            http.key,
            password="",  # one that has a password is refused: nobody is here to be asked
        )
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(
            f"http.certificate: got {http.certificate} with the key {http.key} ({error}), expected "
            "a certificate and its own key without a password, both PEM; write their paths there"
        ) from error


def require_free_port(http: HttpSettings) -> None:
    """Refuse a port at which others listen.

    Raises:
        ConflictError: something listens there, or the address is none of this machine.
    """
    try:
        socket.create_server((http.host, http.port), family=_family_of(http.host)).close()
    except OSError as error:
        raise ConflictError(
            f"http.port: got {http.port} at {http.host} ({error.strerror or error}), expected a "
            "free one; choose another by --set http.port=..., or stop what listens there"
        ) from error


class _LoopServer(uvicorn.Server):
    """A server whose loop others can ask for a sign.

    Attributes:
        loop: that it runs in; None until it does.
    """

    loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is to end."""
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)


class HttpServer:
    """A server that answers from when it is made until it is closed."""

    def __init__(
        self, app: ASGIApp, http: HttpSettings, stalled_s: float = BoundedHttpProtocol.stalled_s
    ):
        """Listen.

        Args:
            app: what answers.
            http: where to listen.
            stalled_s: after two to three times as many seconds, a connection is broken off whose
                client takes nothing of what it is answered. A stream's is closed by the app before.

        Raises:
            OSError: the port is taken by somebody who doesn't share it.
            ConfigError: the certificate can't be used.
        """
        require_certificate(http)
        self._socket = socket.create_server(
            (http.host, http.port),
            family=_family_of(http.host),
            backlog=_BACKLOG,
            reuse_port=True,
        )
        self._server = _LoopServer(
            uvicorn.Config(
                app,
                lifespan="on",
                http=bound_protocol(stalled_s),
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # anybody may send them; limits count by who connects
                server_header=False,
                ssl_certfile=http.certificate,
                ssl_keyfile=http.key,
                timeout_keep_alive=_IDLE_FOR_S,
                timeout_graceful_shutdown=_ENDS_WITHIN_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def require_running(self) -> None:
        """Raise TrainFlowError if it answers no more; blocks for some seconds if it is held up.

        A loop that is held up keeps its share of new connections, since the kernel gives them.
        """
        loop, stirs = self._server.loop, threading.Event()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(stirs.set)
        except RuntimeError:  # it is closed
            self._thread.join(STIRS_WITHIN_S)
        if not self._thread.is_alive():
            raise TrainFlowError("the HTTP server has ended; its log says why")
        if loop is not None and not stirs.wait(STIRS_WITHIN_S):
            raise TrainFlowError(
                f"the HTTP server's event loop has given no sign for {STIRS_WITHIN_S:g} s, "
                "expected one at once; it is held up, or the machine is overloaded"
            )

    def close(self) -> None:
        """Answer what was asked, end streams, and listen no more; nothing if it has ended."""
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        except (Exception, SystemExit):  # what uvicorn raises if the app doesn't come up
            logger.exception("the HTTP server has ended")
        finally:
            self._socket.close()


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
