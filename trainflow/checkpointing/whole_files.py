"""Files of a file system that are there whole or not at all, on local disks and over the network.

A file system shows a file from its first byte. So the data goes to a file of another name, is
flushed, and takes its name in one operation. That name outlasts a loss of power once its folder is
flushed too: `create_file` does that; with `replace_file` it is for the caller to do, once for many.

Process: keeper, coordinator.  Blocks: on the file system.
"""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from trainflow.checkpointing.direct_file import write_flushed

PART_PREFIX = ".part-"
"""How the name of a file begins that isn't whole: what is left of a writer that died."""


def replace_file(
    path: Path, data: memoryview | bytes, before_naming: Callable[[], None] = lambda: None
) -> None:
    """Write a file; one of that name is replaced in one operation.

    Args:
        path: its name.
        data: what will be in it.
        before_naming: called when all is written; if it raises, nothing of that name appears.

    Raises:
        OSError: the file system doesn't take it.
    """
    with _flushed(path, data) as temporary:
        before_naming()
        temporary.replace(path)


def create_file(path: Path, data: bytes, before_naming: Callable[[], None] = lambda: None) -> None:
    """Write a file of a new name; of several writers at once, one succeeds.

    Raises:
        FileExistsError: there is one of that name.
        OSError: the file system doesn't take it, or has no hard links.
    """
    with _flushed(path, data) as temporary:
        before_naming()
        path.hardlink_to(temporary)
    flush_folder(path.parent)


@contextmanager
def _flushed(path: Path, data: memoryview | bytes) -> Generator[Path]:
    """Write and flush a file beside ``path``; it is gone afterwards, unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=PART_PREFIX, dir=path.parent)
    temporary = Path(name)
    try:
        try:
            write_flushed(descriptor, data)
        finally:
            os.close(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on disk, as far as the file system can tell. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
