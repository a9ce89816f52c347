"""Answer HEAD as GET, without the body: of a stream, too, which would not end.

Process: a replica of the service.  Thread: its event loop.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware. What answers GET is ended as soon as it has told its headers."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; one for HEAD as one for GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_told = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                is_told.set()

        answering = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, send_head))
        telling = asyncio.ensure_future(is_told.wait())
        try:
            await asyncio.wait((answering, telling), return_when=asyncio.FIRST_COMPLETED)
            if not is_told.is_set():
                await answering  # raises what it has raised
        finally:
            for task in (answering, telling):
                task.cancel()
            await asyncio.gather(answering, telling, return_exceptions=True)
