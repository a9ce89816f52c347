"""Time to sum gradients over ranks, by what is sent; and what the kernels cost.

    python -m benchmarks.collectives [--quick]

Ranks are processes on hosts of their own (network namespaces), joined by links of 100 Mbit/s, of
1 Gbit/s, and unshaped. In each round every system sums the same payload once, by turns; a round's
time is its slowest rank's. The bytes are those that the interface counted. In the end two ranks
share each of two hosts, and sums by node are measured. Needs root.

Process: the harness; it starts the ranks.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.collectives_rank import NODE_SYSTEMS, SYSTEMS
from benchmarks.kernel_rates import measure_kernels
from benchmarks.report import Row, publish
from trainflow.coordination.chaos.net_hosts import NetHosts, net_hosts

NUM_ELEMENTS = 25_165_824
PORT = 29_555
LINKS = {"100mbit_s": "100mbit", "1gbit_s": "1gbit", "unshaped": None}
ROUNDS = {"100mbit_s": 3, "1gbit_s": 7, "unshaped": 11}


@dataclass(frozen=True)
class World:
    """Where ranks are, and what they measure.

    Attributes:
        name: begins the metrics' names.
        num_hosts: that ranks are on.
        ranks_per_host: side by side.
        systems: that sum by turns, fp32 among them.
    """

    name: str
    num_hosts: int
    ranks_per_host: int = 1
    systems: Sequence[str] = SYSTEMS


WORLDS = [World("n2", 2), World("n4", 4), World("nodes2x2", 2, 2, NODE_SYSTEMS)]


class _Ranks:
    """The processes of one world."""

    def __init__(self, hosts: NetHosts, ranks_per_host: int):
        num_ranks = hosts.count * ranks_per_host
        self._processes = [
            self._start(hosts, rank, num_ranks, ranks_per_host) for rank in range(num_ranks)
        ]
        for process in self._processes:
            self._read(process, "ready")

    def measure(self, system: str) -> list[dict[str, float]]:
        """Let all ranks sum once."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(system + "\n")
            process.stdin.flush()
        return [json.loads(self._read(process)) for process in self._processes]

    def kill(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(
        self, hosts: NetHosts, rank: int, num_ranks: int, ranks_per_host: int
    ) -> subprocess.Popen[str]:
        host = rank // ranks_per_host
        options = {
            "--rank": rank,
            "--world": num_ranks,
            "--ranks-per-host": ranks_per_host,
            "--host": hosts.address(host),
            "--store-host": hosts.address(0),
            "--port": PORT,
            "--elements": NUM_ELEMENTS,
        }
        words = [str(word) for option in options.items() for word in option]
        return subprocess.Popen(
            hosts.command(host, [sys.executable, "-m", "benchmarks.collectives_rank", *words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _read(process: subprocess.Popen[str], expected: str | None = None) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line or (expected is not None and line != expected):
            raise SystemExit(f"a rank said {line!r} and left with {process.poll()}")
        return line


def measure_world(world: World, links: dict[str, str | None], rounds: dict[str, int]) -> list[Row]:
    """Measure all systems with the same ranks."""
    rows: list[Row] = []
    with net_hosts(world.num_hosts) as hosts:
        ranks = _Ranks(hosts, world.ranks_per_host)
        try:
            for system in world.systems:
                ranks.measure(system)  # builds and touches what later rounds find there
            for link, rate in links.items():
                hosts.shape(rate)
                metric = f"{world.name}_{link}"
                rows += _measure_link(ranks, world.systems, metric, rounds[link])
        finally:
            ranks.kill()
    return rows


def _measure_link(ranks: _Ranks, systems: Sequence[str], metric: str, num_rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {system: [] for system in systems}
    sent: dict[str, float] = {}
    for _ in range(num_rounds):
        for system in systems:
            answers = ranks.measure(system)
            times[system].append(max(answer["s"] for answer in answers))
            sent[system] = max(answer["sent_bytes"] for answer in answers)
    rows: list[Row] = []
    for system in systems:
        ratios = [fp32 / own for fp32, own in zip(times["fp32"], times[system], strict=True)]
        rows += [
            Row(system, metric, median(times[system]), "s"),
            Row(system, f"{metric}_speedup", median(ratios), "times fp32"),
            Row(system, f"{metric}_wire_bytes", sent[system], "bytes"),
        ]
        print(f"{metric:>20} {system:>15}: {median(times[system]):8.3f} s, {median(ratios):5.2f} x")
    return rows


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two ranks, 1 Gbit/s, three rounds")
    quick: bool = parser.parse_args().quick
    rows = measure_kernels(quick=quick)
    if quick:
        rows += measure_world(WORLDS[0], {"1gbit_s": "1gbit"}, {"1gbit_s": 3})
    else:
        for world in WORLDS:
            rows += measure_world(world, LINKS, ROUNDS)
    publish("collectives", {"num_elements": NUM_ELEMENTS}, rows, quick=quick)


if __name__ == "__main__":
    main()
