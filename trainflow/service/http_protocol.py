"""HTTP as the service speaks it: uvicorn's, with bounds of what comes before a request is asked.

No token has been looked at while a request's head comes: whoever reaches the port can send one
that never ends, or slowly. Both are refused here, and what is no HTTP, as problems. So is the
connection broken off of whoever takes no answer.

Process: a replica of the service.  Thread: its event loop; each connection has one of these.
"""

import asyncio
import json
import sys
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trainflow.service.problems import MEDIA_TYPE, ProblemError, ProblemType, describe
from trainflow.service.watched_transport import WatchedTransport

HEAD_BYTES = 64 * 1024
HEAD_WITHIN_S = 30.0


class HeadTooLargeError(Exception):
    """Ends the reading of a head."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    stalled_s = 30.0
    """Seconds between two looks whether its client takes what it is answered."""

    _watched: WatchedTransport | None = None
    """What looks."""

    _told_bytes = 0
    """Bytes of this head, or of what follows a body, that the parser has told of."""

    _untold_bytes = 0
    """Those that it has taken since, of a header that isn't whole yet."""

    _head_due: asyncio.TimerHandle | None = None
    """Gives up a head that is waited for."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first head."""
        self._watched = WatchedTransport(transport, self.loop, self.stalled_s)
        super().connection_made(cast("asyncio.Transport", self._watched))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        if self._watched is not None:
            self._watched.stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._head_due is None and not self._is_answering():
            self._expect_head()
        self._untold_bytes += len(data)
        super().data_received(data)
        if self._is_too_much() and not self.transport.is_closing():
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        """Called by the parser: a head begins."""
        super().on_message_begin()
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Called by the parser: an address, or a piece of it."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser: a header is whole; it may be one that follows a body."""
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser: the head is whole."""
        self._stop_waiting()
        self._told_bytes = self._untold_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser: a piece of the body, which has bounds of its own."""
        self._untold_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Called where the parser gives up, while its error is handled."""
        error = sys.exc_info()[1]
        if isinstance(getattr(error, "__context__", None), HeadTooLargeError):
            self._refuse(_too_large())
            return
        self._refuse(
            ProblemError(
                ProblemType.MALFORMED,
                f"request: got what is none of HTTP/1.1 ({error or msg}), expected one; mend it, "
                "and see that the client takes HTTP for HTTP, and HTTPS for HTTPS",
            )
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: it is answered as plain HTTP, and the log isn't for clients to fill."""

    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete  # None until it is asked

    def _expect_head(self) -> None:
        self._stop_waiting()
        self._told_bytes = self._untold_bytes = 0
        self._head_due = self.loop.call_later(HEAD_WITHIN_S, self._give_head_up)

    def _stop_waiting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _count(self, num_bytes: int) -> None:
        self._told_bytes += num_bytes
        self._untold_bytes = 0
        if self._is_too_much():
            raise HeadTooLargeError

    def _is_too_much(self) -> bool:
        return self._told_bytes + self._untold_bytes > HEAD_BYTES

    def _give_head_up(self) -> None:
        if self.pipeline:  # requests wait, and nothing is read meanwhile
            self._expect_head()
        elif not self._told_bytes:
            self.transport.close()
        else:
            self._refuse(
                ProblemError(
                    ProblemType.HEAD_TOO_SLOW,
                    f"headers: got {self._told_bytes} bytes of them, expected all within "
                    f"{HEAD_WITHIN_S:g} s; send them at once",
                )
            )

    def _refuse(self, problem: ProblemError) -> None:
        """Answer with a problem, unless another answer is under way, and close."""
        if self._is_answering() and self.cycle.response_started:
            self.transport.close()
            return
        body = json.dumps(describe(problem)).encode()
        headers = {
            b"content-type": MEDIA_TYPE.encode(),
            b"content-length": str(len(body)).encode(),
            b"cache-control": b"no-store",
            b"connection": b"close",
        }
        lines = [b"%b: %b\r\n" % each for each in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[problem.status_code], *lines, b"\r\n", body]))
        self.transport.close()


def bound_protocol(stalled_s: float) -> type[BoundedHttpProtocol]:
    """Return the protocol with a bound for clients that take nothing.

    Args:
        stalled_s: see `BoundedHttpProtocol`; one is given up after two to three times as long.
    """
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"stalled_s": stalled_s})


def _too_large() -> ProblemError:
    return ProblemError(
        ProblemType.HEAD_TOO_LARGE,
        f"headers: got more than {HEAD_BYTES} bytes with the address, expected at most so many; "
        "send less in them",
    )
