"""What processes of a run that a campaign disturbs say as they begin: that there is one more.

A coordinator or Keeper that dies is started again, and may die again before anybody has asked it
anything. So each notes its beginning in the campaign's folder: all but the first of a place stand
for a death.

Process: coordinator and Keepers note, the campaign reads.  Blocks: on the local disk.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import find_folder
from trainflow.computation.skewed_clock import follow_skew

ServiceTarget = Literal["coordinator", "keeper"]
_FILE = "services.jsonl"


@dataclass(frozen=True)
class ServiceBegin:
    """A process that has begun.

    Attributes:
        target: what it is.
        node_id: of a Keeper, Ray's name of its node; None of a coordinator.
        host: that node's address.
        at_s: CLOCK_REALTIME, before anything has made that wrong.
    """

    target: ServiceTarget
    node_id: str | None
    host: str | None
    at_s: float


def join_campaign(
    job_id: str, target: ServiceTarget, node_id: str | None = None, host: str | None = None
) -> None:
    """Say that this process begins, and have its clock be as wrong as the campaign says, if any.

    Args:
        job_id: of its run.
        target: what it is.
        node_id: of a Keeper, Ray's name of its node.
        host: that node's address.
    """
    folder = find_folder(job_id)
    if folder is not None:
        _note_begin(folder, target, node_id, host)
    follow_skew(folder, os.getpid())


def _note_begin(folder: Path, target: ServiceTarget, node_id: str | None, host: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    begin = ServiceBegin(target, node_id, host, SYSTEM_CLOCK.unix_s())
    with (folder / _FILE).open("ab", buffering=0) as file:  # whole, whoever writes beside it
        file.write(json.dumps(asdict(begin)).encode() + b"\n")


def read_begins(folder: Path) -> list[ServiceBegin]:
    """Return all that have begun, in the order in which they did."""
    try:
        lines = (folder / _FILE).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [ServiceBegin(**json.loads(line)) for line in lines]
