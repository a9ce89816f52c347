"""Ask the Keepers of all other nodes whether they are reached.

Process: keeper.  Blocks: while answers are waited for.  Fails: never; who fails hasn't answered.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from trainflow.coordination.lease import is_majority

_GREETED_AT_A_TIME = 16


class Greetings:
    """Calls each peer once as long as all is well, so that it can be called when all isn't.

    Whoever calls an actor for the first time has Ray's head tell where it is. Where the head is
    what can't be reached, a peer that was never called isn't, either.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, Any] = {}
        self._greeted: set[str] = set()

    def meet(self, peers: Mapping[str, Any]) -> None:
        """Take who the peers are now, by node id."""
        with self._lock:
            self._greeted &= peers.keys()
            self._left = {node: peer for node, peer in peers.items() if node not in self._greeted}

    def greet(self) -> None:
        """Call some that haven't been called yet; what they answer isn't waited for."""
        with self._lock:
            chosen = {node: self._left.pop(node) for node in list(self._left)[:_GREETED_AT_A_TIME]}
            self._greeted |= chosen.keys()
        for peer in chosen.values():
            peer.ping.remote()


@dataclass(frozen=True)
class PeerPing:
    """One question to all of them.

    Attributes:
        sent_at_s: CLOCK_MONOTONIC before it was sent.
        answers: references of what they answer.
    """

    sent_at_s: float
    answers: Sequence[Any]

    @classmethod
    def send(cls, peers: Sequence[Any], now_s: float) -> "PeerPing":
        """Ask these; what answers takes is not waited for."""
        return cls(now_s, [peer.ping.remote() for peer in peers])

    def is_heard(self, within_s: float) -> bool:
        """Wait for answers; returns whether this Keeper and those that come are a majority."""
        asked = list(self.answers)
        done = ray.wait(asked, num_returns=len(asked), timeout=within_s)[0] if asked else []
        return is_majority(sum(_succeeded(answer) for answer in done), len(asked))


def _succeeded(answer: Any) -> bool:  # noqa: ANN401  an object reference
    try:
        ray.get(answer)
    except RayError:
        return False
    return True
