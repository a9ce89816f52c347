"""Let two systems compute by turns, so that a pair of blocks sees the same machine.

A block is a run of steps of one system; while it runs the other system waits. The turn is one
integer in a file that everyone maps. Turns go A B A B, or A B B A: so that a machine which becomes
slower all the time is as slow for both.

Process: every rank of both systems, and the harness.  Blocks: `wait_turn`.
"""

import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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
        """The number of the turn that it is, of both systems' blocks together."""
        return _VALUE.unpack_from(self._map)[0]

    def wait_turn(self, block: int) -> None:
        """Wait until it is ``block``'s turn, or a later one's."""
        while self.block < block:
            SYSTEM_CLOCK.sleep(_POLL_S)

    def finish(self, block: int) -> None:
        """End a block; called by one rank of the system that ran it."""
        _VALUE.pack_into(self._map, 0, block + 1)


@dataclass(frozen=True)
class Side:
    """One of the two systems.

    Attributes:
        work_dir: where its times go, and the turns are.
        system: its name.
        parity: 0 if it begins, else 1.
        steps_a_block: of both.
        is_mirrored: turns go A B B A.
    """

    work_dir: Path
    system: str
    parity: int
    steps_a_block: int
    is_mirrored: bool = False

    def turn_of(self, block: int) -> int:
        """Return the number of the turn in which one of this system's blocks runs."""
        swaps = self.is_mirrored and block % 2 == 1
        return 2 * block + (1 - self.parity if swaps else self.parity)


class BlockClock:
    """Runs one rank's blocks and notes its step times."""

    def __init__(self, side: Side, rank: int):
        self._side = side
        self._turns = Turns(side.work_dir / "turns")
        self._is_first = rank == 0
        self._log = (side.work_dir / f"{side.system}-{rank}.jsonl").open("w", buffering=1)
        self._durations_s: list[float] = []
        self._last_s = 0.0

    def before_step(self, number: int) -> None:
        """Wait for the system's turn if a block begins with this step (from 0)."""
        block, place = divmod(number, self._side.steps_a_block)
        if place == 0:
            self._turns.wait_turn(self._side.turn_of(block))

    def after_step(self, number: int) -> None:
        """Note the time since the last step's end, and pass the turn on if it ends a block."""
        block, place = divmod(number, self._side.steps_a_block)
        now_s = SYSTEM_CLOCK.monotonic_s()
        if place > 0:
            self._durations_s.append(now_s - self._last_s)
        self._last_s = now_s
        if place == self._side.steps_a_block - 1:
            self._log.write(json.dumps({"block": block, "steps_s": self._durations_s}) + "\n")
            self._durations_s = []
            if self._is_first:
                self._turns.finish(self._side.turn_of(block))


def block_medians(work_dir: Path, system: str) -> list[float]:
    """Return each block's median step time in seconds, the slower rank's."""
    logs = [
        [json.loads(line)["steps_s"] for line in path.read_text().splitlines()]
        for path in sorted(work_dir.glob(f"{system}-*.jsonl"))
    ]
    return [max(median(steps) for steps in blocks) for blocks in zip(*logs, strict=True)]
