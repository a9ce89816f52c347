"""What workers take of their machines, and how that lies over all of them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STATISTICS = ("min", "p50", "p99", "max")
"""How values of all ranks are told without a series for each."""


@dataclass(frozen=True)
class Usage:
    """What one worker takes.

    Attributes:
        memory_bytes: of its process that is in memory.
        device_bytes: in use on its device, by whatever process; None if that isn't known.
        device_busy_ratio: share of NVML's newest sampling period in which the device computed; None
            if that isn't known.
    """

    memory_bytes: int
    device_bytes: int | None = None
    device_busy_ratio: float | None = None


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return how one or more values lie, by `STATISTICS`: each is one of them (nearest rank)."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = (0, round(0.5 * last), round(0.99 * last), last)
    return {name: ordered[k] for name, k in zip(STATISTICS, places, strict=True)}


def spread_usage(usages: Iterable[Usage]) -> dict[str, dict[str, float]]:
    """Return how each figure lies over workers, by its name; without those that nobody knows."""
    known = list(usages)
    figures: dict[str, list[float]] = {
        "memory_bytes": [each.memory_bytes for each in known],
        "device_bytes": [each.device_bytes for each in known if each.device_bytes is not None],
        "device_busy_ratio": [
            each.device_busy_ratio for each in known if each.device_busy_ratio is not None
        ],
    }
    return {name: spread(values) for name, values in figures.items() if values}
