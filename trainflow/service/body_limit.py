"""Refuse a body that is too large, before it is read or as soon as it is, or that doesn't come.

Process: a replica of the service.  Thread: its event loop.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainflow.service.asgi import read_header
from trainflow.service.problem_responses import respond
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.settings import LimitSettings


class BodyLimit:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: LimitSettings):
        self._app = app
        self._most_bytes = limits.body_bytes
        self._within_s = limits.body_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = read_header(scope, b"content-length")
        if announced is not None and (not announced.isdecimal() or self._is_too_much(announced)):
            await respond(self._refuse_size(f"{announced[:20]} bytes"))(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _is_too_much(self, announced: str) -> bool:
        return len(announced) > len(str(self._most_bytes)) or int(announced) > self._most_bytes

    def _bounded(self, receive: Receive) -> Receive:
        """Return what receives the body within its bounds; what comes after it has none."""
        num_bytes, is_whole = 0, False
        due_s = asyncio.get_running_loop().time() + self._within_s

        async def receive_bounded() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(due_s):
                    message = await receive()
            except TimeoutError as error:
                raise self._refuse_delay(num_bytes) from error
            num_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if num_bytes > self._most_bytes:
                raise self._refuse_size(f"more than {self._most_bytes} bytes")
            return message

        return receive_bounded

    def _refuse_size(self, got: str) -> ProblemError:
        return ProblemError(
            ProblemType.TOO_LARGE,
            f"body: got {got}, expected at most {self._most_bytes}; keep data out of the "
            "configuration, or raise limits.body_bytes of the service",
            headers={"Connection": "close"},
        )

    def _refuse_delay(self, num_bytes: int) -> ProblemError:
        return ProblemError(
            ProblemType.TOO_SLOW,
            f"body: got {num_bytes} bytes of it, expected all of it within {self._within_s:g} s; "
            "send it at once, or raise limits.body_within_s of the service",
            headers={"Connection": "close"},
        )
