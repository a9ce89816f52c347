"""How a benchmark says what it found: JSON as its last line, and a file for a full run.

Process: the benchmark.
"""

import json
import os
import platform
import random
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
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


def interval_of_median(values: list[float], seed: int = 0) -> tuple[float, float]:
    """Return the bounds that hold the median in 95% of bootstrap samples."""
    rng = random.Random(seed)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return medians[int(0.025 * _BOOTSTRAPS)], medians[int(0.975 * _BOOTSTRAPS)]
