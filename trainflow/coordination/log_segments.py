"""A log that is bounded in size, in a folder: its newest part, in files named by where they begin.

A byte keeps its number for ever, whatever was removed before it. So whoever has read up to a number
goes on there, and is told where the log begins now if what follows that number is gone.

Process: one that writes (a node's Keeper), any that read.  Blocks: on the disk.
"""

import os
from dataclasses import dataclass
from pathlib import Path

SEGMENT_BYTES = 256 * 1024
NUM_SEGMENTS = 8
_SUFFIX = ".log"
_DIGITS = 15


@dataclass(frozen=True)
class Piece:
    """Bytes of a log.

    Attributes:
        begin: number of the first one.
        data: the bytes; empty at the log's end.
    """

    begin: int
    data: bytes

    @property
    def end(self) -> int:
        """Number of the byte that comes after them."""
        return self.begin + len(self.data)


def append_to_log(folder: Path, data: bytes) -> None:
    """Append to a log, and remove what is too old; only its owner may read it: jobs print secrets.

    Raises:
        OSError: the disk doesn't take it; a part may be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    begins = _list_begins(folder)
    begin = begins[-1] if begins else 0
    size = _size(_locate(folder, begin))
    if size >= SEGMENT_BYTES:
        begin += size
        begins.append(begin)
    descriptor = os.open(_locate(folder, begin), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)
    for old in begins[:-NUM_SEGMENTS]:
        _locate(folder, old).unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def read_from_log(folder: Path, offset: int, num_bytes: int) -> Piece:
    """Return what is in a log from a byte on, or from the first one after it that is still there.

    Args:
        folder: of the log; one that isn't there is an empty log.
        offset: number of the byte.
        num_bytes: how many at most.
    """
    for begin in _list_begins(folder):
        try:
            data = read_file_from(_locate(folder, begin), max(0, offset - begin), num_bytes)
        except FileNotFoundError:  # removed since
            continue
        if data:
            return Piece(max(offset, begin), data)
    return Piece(offset, b"")


def read_file_from(path: Path, offset: int, num_bytes: int) -> bytes:
    """Return what is in a file from a byte on; nothing if that is at its end, or beyond.

    However far beyond: a file system doesn't seek to where none of its files can reach.

    Args:
        path: of the file.
        offset: number of the byte.
        num_bytes: how many at most.

    Raises:
        FileNotFoundError: it isn't there.
    """
    with path.open("rb") as file:
        if offset >= os.fstat(file.fileno()).st_size:
            return b""
        file.seek(offset)
        return file.read(num_bytes)


def find_bounds(folder: Path) -> tuple[int, int] | None:
    """Return the number of the first byte that is still there, and of the next to come.

    None if there is no log.
    """
    begins = _list_begins(folder)
    return None if not begins else (begins[0], begins[-1] + _size(_locate(folder, begins[-1])))


def _list_begins(folder: Path) -> list[int]:
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _locate(folder: Path, begin: int) -> Path:
    return folder / f"{begin:0{_DIGITS}d}{_SUFFIX}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
