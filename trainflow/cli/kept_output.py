"""Keep what a process prints in a file too, so that it can be read when its terminal is gone.

A full disk stops nothing: what there is no room for is missing in the file.

Process: driver.  Thread: any that prints.  Blocks: for a local append.
"""

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

DRIVER_LOG = "driver.log"
"""What a run's driver has printed, in the run's folder."""


class CopyingBuffer(io.BufferedIOBase):
    """Bytes for a stream, of which a file gets a copy."""

    def __init__(self, stream: io.BufferedIOBase, copy: int):
        self._stream = stream
        self._copy = copy

    @property
    def name(self) -> str:
        """What the stream is called."""
        return str(getattr(self._stream, "name", ""))

    def write(self, data: "Buffer", /) -> int:
        """Write to both, the file first: the stream's reader may be gone."""
        with suppress(OSError):
            os.write(self._copy, data)
        self._stream.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush the stream; the file holds nothing back."""
        self._stream.flush()

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def fileno(self) -> int:
        """Return the stream's."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()


@contextmanager
def keep_output(path: Path) -> Generator[None]:
    """Append what this process prints to a file, too, while the context lasts.

    Only the owner may read the file: a job prints what it likes.

    Raises:
        OSError: the file can't be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    copy = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    before = sys.stdout, sys.stderr
    try:
        sys.stdout, sys.stderr = (_copying(stream, copy) for stream in before)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = before
        os.close(copy)


def _copying(stream: TextIO, copy: int) -> TextIO:
    buffer = CopyingBuffer(cast("io.BufferedIOBase", stream.buffer), copy)
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors="replace", write_through=True)
