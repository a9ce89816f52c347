"""What looks after a run, and what nobody looks for while one of them is off. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Detector(StrEnum):
    """Each stands still by itself if it fails; training goes on.

    Attributes:
        STRAGGLERS: finds ranks that hold the others up.
        NETWORK: finds links that training waits for.
        DIFFERENCES: names ranks that came to other bits.
        HANGS: finds workers that stand still.
        SILENCE: finds nodes that are not heard any more.
        ISOLATION: takes nodes back that had failed again and again.
        DRAINS: hears of nodes that are to go.
        CUTS: finds nodes that can't reach each other.
        ROOM: finds room for more workers.
        COPIES: finds where copies of the state are missing.
        ANOMALIES: finds losses and gradient norms that are wrong.
        METRICS: shows what there is of the run for Prometheus.
        GOODPUT: keeps the ledger of where the time goes.
    """

    STRAGGLERS = "stragglers"
    NETWORK = "network"
    DIFFERENCES = "differences"
    HANGS = "hangs"
    SILENCE = "silence"
    ISOLATION = "isolation"
    DRAINS = "drains"
    CUTS = "cuts"
    ROOM = "room"
    COPIES = "copies"
    ANOMALIES = "anomalies"
    METRICS = "metrics"
    GOODPUT = "goodput"


@dataclass(frozen=True)
class Duty:
    """What a detector is there for.

    Attributes:
        unwatched: what nobody looks for while it is off, for a person.
        well_after_s: it is asked again and again though it fails, and counts as well again once it
            succeeds and has not failed for so long; None: what it knows may be wrong, so that it is
            asked no more until there is another coordinator.
    """

    unwatched: str
    well_after_s: float | None = None


_STEADY_S = 15.0

DUTIES: Mapping[Detector, Duty] = {
    Detector.STRAGGLERS: Duty("ranks that hold the others up"),
    Detector.NETWORK: Duty("links that training waits for"),
    Detector.DIFFERENCES: Duty("who came to other bits, and is to lose its rank", 0.0),
    Detector.HANGS: Duty(
        "workers that stand still, and ranks that wait for one another", _STEADY_S
    ),
    Detector.SILENCE: Duty("nodes that have fallen silent", _STEADY_S),
    Detector.ISOLATION: Duty("nodes that are to be tried again after failures", _STEADY_S),
    Detector.DRAINS: Duty("nodes that are to go", _STEADY_S),
    Detector.CUTS: Duty("nodes that can't reach each other", _STEADY_S),
    Detector.ROOM: Duty("room for workers that are wanted", _STEADY_S),
    Detector.COPIES: Duty("nodes that lack copies of the state", _STEADY_S),
    Detector.ANOMALIES: Duty("losses and gradient norms that are wrong"),
    Detector.METRICS: Duty("what metrics show, which are gone, stand still or are wrong"),
    Detector.GOODPUT: Duty("where the time goes"),
}
