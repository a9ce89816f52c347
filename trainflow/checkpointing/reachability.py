"""Whether other nodes can be reached at all.

Process: keeper.  Thread: of a call, and one for each of some connections.
Blocks: for at most `REACHED_WITHIN_S` for each `_AT_ONCE` nodes that can't be.
"""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trainflow.epochs import PeerAddress

REACHED_WITHIN_S = 3.0
"""A lost packet is sent again after one second, and after two more."""

_AT_ONCE = 32


def find_unreachable(
    targets: Sequence[PeerAddress], within_s: float = REACHED_WITHIN_S
) -> list[PeerAddress]:
    """Return those of some nodes that take no connection.

    One that is refused counts as none: a Keeper that has just told its address listens there, so
    that it is somebody between who refuses. One that is taken needs both directions.

    Args:
        targets: where Keepers serve snapshots that have just said so.
        within_s: how long to wait for each.
    """
    if not targets:
        return []
    with ThreadPoolExecutor(min(len(targets), _AT_ONCE), "reachability") as pool:
        reached = pool.map(partial(_is_reached, within_s=within_s), targets)
        return [each for each, is_reached in zip(targets, reached, strict=True) if not is_reached]


def _is_reached(target: PeerAddress, within_s: float) -> bool:
    try:
        socket.create_connection((target.host, target.port), within_s).close()
    except OSError:
        return False
    return True
