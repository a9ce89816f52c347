"""Answer with a stream that a client may read for as long as it likes, at a bounded cost.

A client that takes nothing is dropped after a while. That is seen where this process writes to the
client itself; where a proxy stands between, which takes all it is given, a stream ends after
so many bytes: who reads takes it up again where it ended, and who doesn't costs no more than that.
A stream whose token has ended ends a minute later at most, before it tells anything more.

Process: a replica of the service.  Thread: its event loop.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from trainflow.errors import TrainFlowError
from trainflow.service.admission import find_permit
from trainflow.service.permits import Permit
from trainflow.service.problem_responses import respond
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.settings import LimitSettings

logger = logging.getLogger(__name__)

_COME_BACK_AFTER_S = 5


class OpenStreams:
    """How many streams of a replica are open.

    Attributes:
        limits: the service's.
        num_open: at the moment.
    """

    def __init__(self, limits: LimitSettings):
        self.limits = limits
        self.num_open = 0


class StreamResponse(Response):
    """A response whose body comes bit by bit."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        streams: OpenStreams,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ):
        """Answer with ``pieces``, none of which is empty; closed whatever happens."""
        self._pieces = pieces
        self._streams = streams
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({"X-Accel-Buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the pieces end, the client leaves or stalls, or a bound is reached."""
        limits = self._streams.limits
        if self._streams.num_open >= limits.streams:
            await self._pieces.aclose()
            await respond(_too_many(limits))(scope, receive, send)
            return
        self._streams.num_open += 1
        try:
            await self._send_while_wanted(receive, send, find_permit(scope))
        finally:
            self._streams.num_open -= 1

    async def _send_while_wanted(self, receive: Receive, send: Send, permit: Permit | None) -> None:
        sending = asyncio.ensure_future(self._send_all(send, permit))
        leaving = asyncio.ensure_future(_wait_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Send, permit: Permit | None) -> None:
        stalled_s = self._streams.limits.stalled_s
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            async with aclosing(self._pieces) as pieces:
                await _send_within(stalled_s, send, start)
                await self._send_pieces(send, pieces, permit)
                await _send_within(stalled_s, send, _body(b"", more=False))
        except TimeoutError:
            logger.warning("dropped a stream whose client took nothing for %g s", stalled_s)

    async def _send_pieces(
        self, send: Send, pieces: AsyncGenerator[bytes], permit: Permit | None
    ) -> None:
        limits = self._streams.limits
        num_bytes = 0
        try:
            async for piece in pieces:
                num_bytes += len(piece)
                if permit is not None:
                    await permit.require()
                await _send_within(limits.stalled_s, send, _body(piece, more=True))
                if num_bytes >= limits.stream_bytes:
                    return
        except TrainFlowError as error:
            logger.warning("a stream ends, to be taken up again: %s", error)


async def _send_within(stalled_s: float, send: Send, message: Message) -> None:
    """Send, once the client has taken enough of what was sent before; raises TimeoutError."""
    async with asyncio.timeout(stalled_s):
        await send(message)


async def _wait_left(receive: Receive) -> None:
    """Wait until a client has gone, or has not ended its own request in time."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except ProblemError as error:
        logger.warning("dropped a stream: %s", error.detail)


def _body(piece: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": piece, "more_body": more}


def _too_many(limits: LimitSettings) -> ProblemError:
    return ProblemError(
        ProblemType.TOO_MANY_STREAMS,
        f"streams: got {limits.streams} open ones, expected fewer; close some, come back in "
        f"{_COME_BACK_AFTER_S} s, or raise limits.streams of the service",
        headers={"Retry-After": str(_COME_BACK_AFTER_S)},
    )
