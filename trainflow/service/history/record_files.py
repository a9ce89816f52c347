"""Read what is new in the files of a run's record, which somebody else writes at the same time.

Process: any that keeps the history.  Thread: any.  Blocks: on the disk.  Fails: OSError.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

SLICE_BYTES = 2 * 2**20
"""How much of a file of lines is read at a time; no line may be longer."""

_DOCUMENT_BYTES = 32 * 2**20

_TAIL_BYTES = 512
_INODE_MASK = 2**63 - 1


@dataclass(frozen=True)
class Stamp:
    """What tells that a file has changed.

    Attributes:
        inode: another one after it was replaced.
        size: in bytes.
        modified_ns: when it last was.
    """

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        """Return that of a file."""
        return cls(found.st_ino & _INODE_MASK, found.st_size, found.st_mtime_ns)


UNREAD = Stamp(0, -1, 0)
"""No file's: what has it was not read to its end."""


@dataclass(frozen=True)
class Bookmark:
    """How far a file of lines has been read.

    Attributes:
        offset: of the first byte that was not.
        inode: of the file that was read.
        tail: hash of the bytes before the offset.
    """

    offset: int = 0
    inode: int = 0
    tail: str = ""


START = Bookmark()
"""Of a file that was not read yet."""


@dataclass(frozen=True)
class Slice:
    """Lines that came after a bookmark.

    Attributes:
        objects: whole lines that are JSON objects.
        num_unreadable: lines that are not.
        bookmark: after them.
        stamp: of the file, if it was read to its end; else `UNREAD`.
        begins_anew: the file is another than the one before, and these are its first lines.
    """

    objects: tuple[dict[str, Any], ...]
    num_unreadable: int
    bookmark: Bookmark
    stamp: Stamp
    begins_anew: bool

    @property
    def has_more(self) -> bool:
        """Whether the file goes on."""
        return self.stamp == UNREAD


@dataclass(frozen=True)
class Document:
    """A JSON object that is the whole of a file.

    Attributes:
        content: of it; nothing if it is damaged, or too long.
        stamp: of the file.
    """

    content: dict[str, Any]
    stamp: Stamp

    @property
    def written_at_s(self) -> float:
        """CLOCK_REALTIME when the file was."""
        return self.stamp.modified_ns / 1e9


def look_at(path: Path) -> Stamp | None:
    """Return a file's stamp; None if there is no such file."""
    try:
        return Stamp.of(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_slice(path: Path, known: Bookmark, num_bytes: int = SLICE_BYTES) -> Slice:
    """Return whole lines after a bookmark; half a line at the file's end is left for later.

    A file that was replaced, or is shorter than it was, is read from its beginning, once it has a
    whole line.

    Args:
        path: of the file.
        known: how far it was read.
        num_bytes: how much to read at most.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        begins_anew = not _goes_on(file.fileno(), stamp, known)
        offset = 0 if begins_anew else known.offset
        file.seek(offset)
        data = file.read(num_bytes)
        is_over = len(data) < num_bytes
        # A line that is longer than all that is read at a time is none of ours: it is skipped.
        end = data.rfind(b"\n") + 1 or (0 if is_over else len(data))
        objects, num_unreadable = _parse(data[:end])
        bookmark = known
        if end > 0:
            tail = _hash_tail(file.fileno(), offset + end)
            bookmark = Bookmark(offset + end, stamp.inode, tail)
    return Slice(
        objects=objects,
        num_unreadable=num_unreadable,
        bookmark=bookmark,
        stamp=stamp if is_over else UNREAD,
        begins_anew=begins_anew and known.offset > 0 and end > 0,
    )


def read_document(path: Path) -> Document | None:
    """Return what is in a file that holds one JSON object; None if there is no such file.

    Raises:
        OSError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            stamp = Stamp.of(os.fstat(file.fileno()))
            return Document(parse_object(file.read(_DOCUMENT_BYTES)) or {}, stamp)
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _parse(data: bytes) -> tuple[tuple[dict[str, Any], ...], int]:
    lines = [line for line in data.split(b"\n") if line.strip()]
    found = [parse_object(line) for line in lines]
    objects = tuple(each for each in found if each is not None)
    return objects, len(lines) - len(objects)


def _goes_on(descriptor: int, stamp: Stamp, known: Bookmark) -> bool:
    """Whether a file still has what was read of it."""
    if stamp.inode != known.inode or stamp.size < known.offset:
        return False
    return _hash_tail(descriptor, known.offset) == known.tail


def _hash_tail(descriptor: int, offset: int) -> str:
    begin = max(0, offset - _TAIL_BYTES)
    return hashlib.sha256(os.pread(descriptor, offset - begin, begin)).hexdigest()
