"""Read what Prometheus would: the metrics that every node of the cluster exports."""

import re
import urllib.request
from collections.abc import Iterator, Mapping

import ray

_TIMEOUT_S = 10.0


def scrape(metric: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels, over all nodes; 0 if there are none.

    Args:
        metric: its name in the exposition format.
        labels: that a sample must have; it may have more.
    """
    return sum(_samples(metric, labels))


def shows(metric: str, **labels: str) -> bool:
    """Whether there is any sample of a metric with these labels, be it 0."""
    return any(True for _ in _samples(metric, labels))


def _samples(metric: str, labels: Mapping[str, str]) -> Iterator[float]:
    for page in _pages():
        for shown, value in re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", page, re.MULTILINE):
            if all(f'{name}="{label}"' in shown for name, label in labels.items()):
                yield float(value)


def _pages() -> list[str]:
    pages: list[str] = []
    for node in ray.nodes():
        if node["Alive"]:
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                pages.append(answer.read().decode())
    return pages
