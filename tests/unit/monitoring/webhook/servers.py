"""A real HTTP server that does what a test tells it to."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Notes what it is sent.

    Attributes:
        documents: that were posted, with those it refused.
        headers: of the newest.
        arrived: released once for each document.
        answer: returns the status for a document; it may block.
        is_freed: whether those that hang may go on.
    """

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.arrived = threading.Semaphore(0)
        self.answer: Callable[[bytes], int] = lambda _: 200
        self.is_freed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/secret-path?token=secret-query"

    def hang(self, _: bytes) -> int:
        self.is_freed.wait()
        return 200

    def close(self) -> None:
        self.is_freed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = self.rfile.read(int(self.headers["Content-Length"]))
                outer.documents.append(document)
                outer.headers = dict(self.headers)
                outer.arrived.release()
                status = outer.answer(document)
                try:
                    self.send_response(status)
                    if status in {301, 302, 307}:
                        self.send_header("Location", "/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass  # whoever asked has gone

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def serving() -> Generator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
