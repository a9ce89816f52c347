"""Let two systems compute by turns, so that a pair of blocks sees the same machine.

A block is a run of steps of one system; while it runs the other system waits. The turn is one
integer in a file that everyone maps: block b belongs to the first system if b is even.

Process: every rank of both systems, and the harness.  Blocks: `wait_turn`.
"""

import mmap
import os
import struct
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK

_POLL_S = 0.002
_VALUE = struct.Struct("<q")


class Turns:
    """The shared counter of blocks."""

    def __init__(self, path: Path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _VALUE.size)
            self._map = mmap.mmap(descriptor, _VALUE.size)
        finally:
            os.close(descriptor)

    @property
    def block(self) -> int:
        """The block whose turn it is."""
        return _VALUE.unpack_from(self._map)[0]

    def wait_turn(self, block: int) -> None:
        """Wait until it is ``block``'s turn, or a later one's."""
        while self.block < block:
            SYSTEM_CLOCK.sleep(_POLL_S)

    def finish(self, block: int) -> None:
        """End a block; called by one rank of the system that ran it."""
        _VALUE.pack_into(self._map, 0, block + 1)
