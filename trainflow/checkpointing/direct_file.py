"""Write a file past the page cache, where the file system lets us.

What is uploaded beside training must cost it little. Copying a chunk into the page cache takes a
core for longer than the snapshot blocked the step, while the disk can fetch the same bytes from
memory by itself. Nor would they be of use in the cache: they are read after a failure.

Process: keeper.  Blocks: on the disk.
"""

import errno
import fcntl
import os

BLOCK_BYTES = 4096
"""Memory that begins at a multiple of this can go to any disk directly."""


def write_flushed(descriptor: int, data: memoryview | bytes) -> None:
    """Write all of ``data`` to an empty file, and flush it. Raises OSError."""
    rest = memoryview(data).cast("B")
    rest = rest[_write_direct(descriptor, rest[: len(rest) - len(rest) % BLOCK_BYTES]) :]
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _write_direct(descriptor: int, blocks: memoryview) -> int:
    """Write whole blocks; returns how many bytes went: fewer if direct writing is refused."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    written = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while written < len(blocks):
            written += os.write(descriptor, blocks[written:])
    except OSError as error:
        # The file system can't, or the memory isn't aligned: the caller goes on through the cache.
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written
