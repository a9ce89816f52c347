"""How a benchmark says what it found: JSON as its last line, and a file for a full run.

Process: the benchmark.
"""

import json
import os
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

RESULTS = Path(__file__).parent / "results"
_BOOTSTRAPS = 2000


@dataclass(frozen=True)
class Row:
    """One figure of one system."""

    system: str
    metric: str
    value: float
    unit: str


def machine_conditions() -> dict[str, Any]:
    """Describe what every figure of this machine depends on."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
        "load_1min_at_end": round(os.getloadavg()[0], 2),
    }


def publish(name: str, conditions: dict[str, Any], rows: list[Row], *, quick: bool) -> None:
    """Print the figures; a full run also keeps them under ``benchmarks/results``."""
    result = {
        "name": name,
        "conditions": {"quick": quick, **machine_conditions(), **conditions},
        "rows": [{**asdict(row), "value": round(row.value, 6)} for row in rows],
    }
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


Figure = Callable[[Sequence[float]], float]


def interval_over_rounds(
    rounds: Sequence[Sequence[float]], figure: Figure = median, seed: int = 0
) -> tuple[float, float]:
    """Return the bounds that hold a figure of all values in 95% of bootstrap samples.

    Rounds are drawn first, and then values in each: what differs from one round to the next, as
    where processes happen to lie in memory, is in the interval.
    """
    rng = random.Random(seed)
    figures: list[float] = []
    for _ in range(_BOOTSTRAPS):
        drawn = rng.choices(rounds, k=len(rounds))
        figures.append(figure([v for each in drawn for v in rng.choices(each, k=len(each))]))
    figures.sort()
    return figures[int(0.025 * _BOOTSTRAPS)], figures[int(0.975 * _BOOTSTRAPS)]


_T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t by degrees of freedom from 1 on, of which 2.5% lies beyond."""


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of a mean by Student's t, which few values need; None of one alone.

    Of more than eleven values it is a little too wide.
    """
    if len(values) == 1:
        return None
    freedom = min(len(values) - 1, len(_T_975))
    half = _T_975[freedom - 1] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def interval_of_median(values: list[float], seed: int = 0) -> tuple[float, float]:
    """Return the bounds that hold the median in 95% of bootstrap samples."""
    rng = random.Random(seed)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return medians[int(0.025 * _BOOTSTRAPS)], medians[int(0.975 * _BOOTSTRAPS)]
