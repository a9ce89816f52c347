"""Die by SIGKILL at the n-th change that this process makes to a folder, or call in some modules.

What a process does to files is seen where the interpreter reports it (audit events), so nothing of
the product is replaced. Between two changes a folder looks the same whatever is read: so only
changes are counted. Flushing isn't reported: there the file is cut in half first, as it would be if
the process had died in the middle of its bytes.

Process: one that a test has started to die.  Threads: any of it.
"""

import itertools
import os
import signal
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any


def die_at_file_operation(folder: Path, number: int, note: Path) -> None:
    """Die just before the change of this number to something in ``folder``.

    Args:
        folder: what counts; everything else is free.
        number: from 0.
        note: a file that tells afterwards which operation it was.
    """
    below = f"{folder}/"
    counter = itertools.count()  # one step of it is atomic

    def count(what: str, path: str, descriptor: int | None = None) -> None:
        if f"{path}/".startswith(below) and next(counter) == number:
            if descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            note.write_text(f"{what} {path.removeprefix(below)}")
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        path = _changed_by(event, arguments)
        if path is not None:
            count(event, path)

    def flush(descriptor: int) -> None:
        count("flush", str(Path(f"/proc/self/fd/{descriptor}").readlink()), descriptor)
        flush_really(descriptor)

    flush_really, os.fsync = os.fsync, flush
    sys.addaudithook(hear)


def _changed_by(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return what the operation is about to change; None if nothing."""
    match event, arguments:
        case "open", (str() | Path() as path, _, int(flags)) if flags & (os.O_WRONLY | os.O_RDWR):
            return str(path)
        case "os.mkdir", (path, *_) if not Path(path).exists():
            return str(path)
        case "os.remove" | "os.rmdir", (path, *_) if Path(path).exists():
            return str(path)
        case "os.rename" | "os.link", (_, path, *_):
            return str(path)
        case _:
            return None


def die_at_call(files: Collection[str], number: int, note: Path) -> None:
    """Die at the entry to, or the return from, a function that one of the source files defines."""
    counter = itertools.count()

    def hear(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        ours = event in {"call", "return"} and Path(code.co_filename).name in files
        if ours and next(counter) == number:
            sys.setprofile(None)
            note.write_text(f"{event} {code.co_name}")
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hear)
