"""Do in a Keeper what a chaos campaign has ordered: die with half of what a rank reads sent.

Loads no torch.

Process: keeper, in a campaign.  Threads: those that serve snapshots.  Blocks: on the local disk,
for a look and a claim.
"""

import os
import threading
from pathlib import Path

from trainflow.clock import Clock
from trainflow.computation.chaos_orders import SIGNALS, Claim, Order, OrderBook, claim
from trainflow.epochs import Phase, Version


class KeeperInjector:
    """One Keeper's part in a campaign's faults.

    Args:
        folder: of the run, in the campaign's folder.
        host: that the Keeper is on.
        clock: tells when something was done.
    """

    def __init__(self, folder: Path, host: str, clock: Clock):
        self._folder = folder
        self._host = host
        self._clock = clock
        self._book = OrderBook(folder)
        self._lock = threading.Lock()

    def on_half_sent(self, version: Version) -> None:
        """Half of what a rank reads of a state, to go on from it, is on its way."""
        with self._lock:
            self._book.look()
            due = [order for order in self._book.orders if _is_due(order, version)]
            for order in due:
                if self._claim(order, version):
                    os.kill(os.getpid(), SIGNALS[order.kind])

    def _claim(self, order: Order, version: Version) -> bool:
        epoch = (version.epoch.incarnation, version.epoch.counter)
        at_s = self._clock.unix_s()
        made = Claim(order.number, self._host, os.getpid(), None, version.step + 1, epoch, at_s, 0)
        return claim(self._folder, made)


def _is_due(order: Order, version: Version) -> bool:
    return (
        order.rank is None
        and order.phase == Phase.RESTORING
        and order.step is not None
        and order.step <= version.step + 1
    )
