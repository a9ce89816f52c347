"""How long a sum would take by what is sent, and so what is worth sending. Pure.

Few published compressors beat tuned fp32 (arXiv 2103.00543): what they save on the link they spend
on arithmetic. So compress only where the model says that it pays, and by how much.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WORTH_FROM = 1.1
"""Compress if that many times as fast is predicted, at least."""


@dataclass(frozen=True)
class Link:
    """What the slowest rank's link does.

    Attributes:
        latency_s: of one collective, whatever its size.
        bytes_per_s: that each rank sends while all sum in a ring.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Candidate:
    """A way to sum, and what it costs one rank.

    Attributes:
        wire_bytes: sent for all gradients of a step.
        num_collectives: issued for them.
        arithmetic_s: for all of them; at the same time the link carries others.
    """

    wire_bytes: int
    num_collectives: int
    arithmetic_s: float = 0.0


@dataclass(frozen=True)
class Choice:
    """What to send.

    Attributes:
        name: of the candidate.
        predicted_s: of every candidate, by name: the time to sum one step's gradients.
        link: that it was predicted for.
    """

    name: str
    predicted_s: dict[str, float]
    link: Link


def predict_s(candidate: Candidate, link: Link) -> float:
    """Return the time to sum: a pipeline takes as long as its slower stage, and a turn of both."""
    wire_s = candidate.wire_bytes / link.bytes_per_s
    slower_s, faster_s = sorted((wire_s, candidate.arithmetic_s), reverse=True)
    turns = max(1, candidate.num_collectives)
    return slower_s + faster_s / turns + link.latency_s * turns


def choose(candidates: Mapping[str, Candidate], link: Link) -> Choice:
    """Choose among candidates, of which one is ``none``; compression must be worth it."""
    predicted_s = {name: predict_s(each, link) for name, each in candidates.items()}
    best = min(predicted_s, key=lambda name: (predicted_s[name], name))
    if predicted_s["none"] < WORTH_FROM * predicted_s[best]:
        best = "none"
    return Choice(best, predicted_s, link)
