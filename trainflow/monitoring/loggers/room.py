"""Ask for room before something is written that a full disk would leave in halves.

Process: coordinator.  Thread: a logger's own.
"""

import errno
import shutil
from pathlib import Path

_ROOM = 1 << 20  # bytes


def require_room(folder: Path) -> None:
    """Raise OSError if hardly anything can be written to a folder that is there."""
    usage = shutil.disk_usage(folder)
    if usage.total > 0 and usage.free < _ROOM:  # some file systems don't tell
        raise OSError(errno.ENOSPC, f"less than {_ROOM >> 20} MiB is free in {folder}")
