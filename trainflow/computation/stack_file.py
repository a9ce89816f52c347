"""Where a process writes the stacks of all its threads when it is asked to by a signal.

The signal's handler is C code that needs no thread of Python's to get on: it also runs where each
of them is blocked in a library. It reads frames while others may change them, so it is for a
process that stands still.

Process: every worker writes its own, the node's Keeper asks and reads.
Thread: whichever the signal is delivered to.  Blocks: never.
Fails: never raises; a worker without room for the file trains without it.
"""

import faulthandler
import logging
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

STACK_SIGNAL = signal.SIGRTMIN + 5
"""Not one that the training function, Ray or a batch system may use for itself."""

_HEADER = "training 0x{training:016x} main 0x{main:016x}\n"
_HEADER_FORM = re.compile(rb"training 0x([0-9a-f]{16}) main 0x([0-9a-f]{16})\n")
HEADER_BYTES = len(_HEADER.format(training=0, main=0))


class StackFile:
    """One worker's file; what is asked for is appended to it."""

    def __init__(self, path: Path):
        self._path = path
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_make_header(0))
            self._file = path.open("ab", buffering=0)
            faulthandler.register(STACK_SIGNAL, self._file, all_threads=True, chain=False)
        except (OSError, RuntimeError) as error:
            logger.warning("%s can't be written, stacks won't be shown: %s", path, error)

    def name_training_thread(self) -> None:
        """Note that the calling thread is the one that trains."""
        try:
            with self._path.open("r+b") as file:
                file.write(_make_header(threading.get_ident()))
        except OSError as error:
            logger.warning("%s doesn't tell the training thread: %s", self._path, error)

    def close(self) -> None:
        """Remove the file. The handler stays: without it, the signal would end the process."""
        self._path.unlink(missing_ok=True)


def _make_header(training: int) -> bytes:
    main = threading.main_thread().ident or 0
    return _HEADER.format(training=training, main=main).encode()


@dataclass(frozen=True)
class Stacks:
    """What was in such a file.

    Attributes:
        text: as `faulthandler` writes it; empty before it has written.
        training_thread: identifies the thread that trains; 0 before training begins.
        main_thread: identifies the oldest thread, which comes last in the text.
    """

    text: str
    training_thread: int
    main_thread: int


def read_stacks(path: Path, max_bytes: int) -> Stacks | None:
    """Read a worker's file, up to so many bytes; None if there is none, or it isn't whole yet."""
    try:
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES + max_bytes)
    except FileNotFoundError:
        return None
    header = _HEADER_FORM.match(data)
    if header is None:
        return None
    training, main = (int(each, 16) for each in header.groups())
    return Stacks(data[HEADER_BYTES:].decode(errors="replace"), training, main)
