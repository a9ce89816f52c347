"""Refuse a body that is too large: before it is read, or, if not announced, as soon as it is.

Process: a replica of the service.  Thread: its event loop.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainflow.service.asgi import read_header
from trainflow.service.problem_responses import respond
from trainflow.service.problems import ProblemError, ProblemType


class BodyLimit:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, most_bytes: int):
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = read_header(scope, b"content-length")
        if announced is not None and (not announced.isdecimal() or self._is_too_much(announced)):
            await respond(self._refuse(f"{announced[:20]} bytes"))(scope, receive, send)
            return
        await self._app(scope, self._counting(receive), send)

    def _is_too_much(self, announced: str) -> bool:
        return len(announced) > len(str(self._most_bytes)) or int(announced) > self._most_bytes

    def _counting(self, receive: Receive) -> Receive:
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._most_bytes:
                raise self._refuse(f"more than {self._most_bytes} bytes")
            return message

        return receive_counted

    def _refuse(self, got: str) -> ProblemError:
        return ProblemError(
            ProblemType.TOO_LARGE,
            f"body: got {got}, expected at most {self._most_bytes}; keep data out of the "
            "configuration, or raise limits.body_bytes of the service",
            headers={"Connection": "close"},
        )
