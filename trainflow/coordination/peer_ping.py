"""Ask the Keepers of all other nodes whether they are reached.

Process: keeper.  Blocks: while answers are waited for.  Fails: never; who fails hasn't answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from trainflow.coordination.lease import is_majority


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
