"""What a chaos campaign has ranks do to themselves, and where they say that it was done.

Some faults can't be done from outside: a bit of what a rank has summed, a death in the middle of a
certain phase of a certain step, or of a Keeper while a rank reads from it. The campaign appends
such an order to a file in its folder, the rank or Keeper that it is for finds it there. Whoever
makes the file that claims an order does it, so that it is done once, whichever process holds the
rank by then.

Process: the campaign writes orders, ranks and Keepers read and claim them.
Blocks: on the local disk.
"""

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

CAMPAIGN = "TRAINFLOW_CAMPAIGN"
"""Environment variable with a campaign's folder; where it is set, workers take part."""

OrderKind = Literal["kill", "stop", "flip"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""What a process sends itself, by the order's kind."""


@dataclass(frozen=True)
class Order:
    """One fault for a rank to do to itself.

    Attributes:
        number: of the fault, among all of the campaign.
        kind: kill and stop are signals; flip changes a bit of the summed gradients.
        rank: which rank; None: it is for a Keeper, whichever is the first to be at that place.
        step: in which step; None: the first that begins after the order was read. In phases that
            come before a step: before this one, or a later one.
        phase: in which phase of it; None for a flip, which has a place of its own.
        pick: in [0, 1): which bit.
    """

    number: int
    kind: OrderKind
    rank: int | None
    step: int | None
    phase: str | None
    pick: float = 0.0


@dataclass(frozen=True)
class Claim:
    """An order that has been done.

    Attributes:
        number: of the order.
        worker_id: who did it; of a Keeper the host that it is on.
        pid: of its process.
        rank: that it had; None: it was a Keeper.
        step: that it was in, or was about to be given the state for.
        epoch: that it was in: incarnation and counter.
        at_s: CLOCK_REALTIME, right before.
        world_size: how many ranks there were.
    """

    number: int
    worker_id: str
    pid: int
    rank: int | None
    step: int
    epoch: tuple[int, int]
    at_s: float
    world_size: int


def find_folder(job_id: str) -> Path | None:
    """Return the folder of this run in the campaign that this process is in; None outside one."""
    campaign = os.environ.get(CAMPAIGN)
    return Path(campaign) / job_id if campaign else None


def give_order(folder: Path, order: Order) -> None:
    """Append an order; a rank that looks sees all of it, or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    with _orders(folder).open("ab", buffering=0) as file:
        file.write(json.dumps(asdict(order)).encode() + b"\n")


def claim(folder: Path, made: Claim) -> bool:
    """Say that an order is done by this process from here on; False if another one has."""
    try:
        with _claim(folder, made.number).open("x") as file:
            json.dump(asdict(made), file)
    except FileExistsError:
        return False
    return True


def read_claim(folder: Path, number: int) -> Claim | None:
    """Return who did an order; None if nobody has said so yet."""
    try:
        found = json.loads(_claim(folder, number).read_text())
    except (FileNotFoundError, ValueError):  # not there, or not whole yet
        return None
    return Claim(**found | {"epoch": tuple(found["epoch"])})


class OrderBook:
    """The orders of one folder, each read once."""

    def __init__(self, folder: Path):
        self._path = _orders(folder)
        self._read_bytes = 0
        self.orders: list[Order] = []

    def look(self) -> None:
        """Read what has been added."""
        try:
            if self._path.stat().st_size == self._read_bytes:
                return
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                added = file.read()
        except FileNotFoundError:
            return
        self._read_bytes += len(added)
        self.orders += [Order(**json.loads(line)) for line in added.splitlines()]


def _orders(folder: Path) -> Path:
    return folder / "orders.jsonl"


def _claim(folder: Path, number: int) -> Path:
    return folder / f"done-{number}.json"
