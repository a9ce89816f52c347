"""An append-only file of JSON objects, one a line, that survives crashes and full disks.

A crash while a line is appended leaves it torn: it is dropped on reading. A line for which there is
no room waits in memory and is written, in its order, together with a later one.

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
"""

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_WAITING = 10_000
_BLOCK_BYTES = 1024 * 1024


class LineFile:
    """One such file, with one writer.

    Attributes:
        waiting: lines that could not be written so far; the oldest of very many are dropped.
        num_dropped: how many were.
    """

    def __init__(self, path: Path):
        self._path = path
        self.num_dropped = 0
        self.waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        _end_torn_line(path)

    @property
    def name(self) -> str:
        """Of the file, without its folder."""
        return self._path.name

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines."""
        return read_lines(self._path)

    def read_last(self, count: int) -> list[dict[str, Any]]:
        """Return the whole ones of the last ``count`` lines; what comes before them isn't read."""
        return _parse(_read_end(self._path, count)[-count:])

    def append(self, line: dict[str, Any]) -> OSError | None:
        """Write ``line`` and what waits before it; returns why some of it has to wait, if so."""
        self.num_dropped += len(self.waiting) == self.waiting.maxlen
        self.waiting.append(json.dumps(line).encode() + b"\n")
        return self.flush()

    def flush(self) -> OSError | None:
        """Write what waits; returns why some of it has to wait longer, if so."""
        if not self.waiting:
            return None
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            return error
        try:
            while self.waiting:
                _write_whole(descriptor, self.waiting[0])
                self.waiting.popleft()
        except OSError as error:
            return error
        finally:
            os.close(descriptor)
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all whole lines of a file, which may be another's and is left as it is."""
    if not path.exists():
        return []
    return _parse(path.read_bytes().split(b"\n"))


def _parse(texts: Iterable[bytes]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for text in texts:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue  # torn by a crash while it was appended
    return lines


def _read_end(path: Path, count: int) -> list[bytes]:
    """Return the last lines of a file, in order: at least ``count``, if it has as many."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        begin = file.seek(0, os.SEEK_END)
        data = b""
        while begin > 0 and data.count(b"\n") <= count:
            size = min(begin, _BLOCK_BYTES)
            begin -= size
            file.seek(begin)
            data = file.read(size) + data
    return data.removesuffix(b"\n").split(b"\n")


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append ``data`` or nothing; raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _end_torn_line(path: Path) -> None:
    """Keep what is appended next apart from a line that a crash has torn."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)  # a long run's file is not read through for its last byte
        if file.read(1) != b"\n":
            file.write(b"\n")
