"""Find the documents that a corpus is packed from, always in the same order.

Process: ``trainflow data pack``.  Blocks: on the local disk.
"""

import codecs
import glob
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainflow.errors import DataError

STDLIB = "stdlib"
"""The word for the Python standard library's own source, which is on every machine."""

_NOT_STDLIB = {
    *("site-packages", "dist-packages", "__pycache__"),  # not the standard library
    *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo"),  # not a library
    *("encodings", "pydoc_data"),  # tables, not code
}


def find_documents(source: str) -> list[Path]:
    """Return the files of a source, sorted.

    Args:
        source: a directory (all files below it, without hidden ones), a glob (``**`` descends), one
            file, or ``stdlib``.

    Raises:
        DataError: there is no such thing, or no file in it.
    """
    path = Path(source).expanduser()
    if source == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        files = _list_files(root, "*.py", leave_out=_NOT_STDLIB)
    elif path.is_dir():
        files = _list_files(path, "*", leave_out=set())
    elif path.is_file():
        files = [path]
    elif glob.has_magic(source):
        base = Path(path.anchor)
        files = sorted(each for each in base.glob(str(path.relative_to(base))) if each.is_file())
    else:
        msg = f"nothing to pack at {source!r}: expected a directory, a file, a glob or {STDLIB!r}"
        raise DataError(msg)
    if not files:
        msg = f"nothing to pack at {source!r}: no file there; name a directory that holds text"
        raise DataError(msg)
    return files


def _list_files(root: Path, pattern: str, leave_out: set[str]) -> list[Path]:
    """Return the files below ``root``, without hidden parts and those in ``leave_out``."""
    files: list[Path] = []
    for path in root.rglob(pattern):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and leave_out.isdisjoint(parts):
            files.append(path)
    return sorted(files)


class DocumentReader:
    """Reads the text of files, up to a number of bytes, and counts what it read.

    Attributes:
        num_documents: documents given so far.
        num_skipped_documents: files left out because they are not UTF-8 text.
        num_bytes: bytes of the documents given so far.
    """

    def __init__(self, paths: Sequence[Path], max_bytes: int | None) -> None:
        """Read ``paths`` in order; the document that reaches ``max_bytes`` is cut there."""
        self._paths = paths
        self._max_bytes = max_bytes
        self.num_documents = 0
        self.num_skipped_documents = 0
        self.num_bytes = 0

    def __iter__(self) -> Iterator[str]:
        """Give the text of one document after another, empty ones left out."""
        for path in self._paths:
            if self._max_bytes is not None and self.num_bytes >= self._max_bytes:
                return
            content, is_whole = self._read(path)
            try:
                text, _ = codecs.utf_8_decode(content, "strict", is_whole)
            except UnicodeDecodeError:
                text = "\0"
            if "\0" in text:
                self.num_skipped_documents += 1
            elif text:
                self.num_documents += 1
                self.num_bytes += len(content)
                yield text

    def _read(self, path: Path) -> tuple[bytes, bool]:
        """Return as much of a file as is still wanted, and whether that is all of it."""
        wanted_bytes = -1 if self._max_bytes is None else self._max_bytes - self.num_bytes
        try:
            with path.open("rb") as file:
                return file.read(wanted_bytes), not file.read(1)
        except OSError as error:
            msg = f"{path} can't be read ({error}); make it readable or leave it out of the source"
            raise DataError(msg) from error
