"""Time to sum gradients over ranks, by what is sent; and what the kernels cost.

    python -m benchmarks.collectives [--quick]

Ranks are processes on hosts of their own (network namespaces), joined by links of 100 Mbit/s, of
1 Gbit/s, and unshaped. In each round every system sums the same payload once, by turns; a round's
time is its slowest rank's. The bytes are those that the interface counted. Needs root.

Process: the harness; it starts the ranks.
"""

import argparse
import json
import subprocess
import sys
from statistics import median

from benchmarks.collectives_rank import SYSTEMS
from benchmarks.kernel_rates import measure_kernels
from benchmarks.net_hosts import NetHosts, net_hosts
from benchmarks.report import Row, publish

NUM_ELEMENTS = 25_165_824
PORT = 29_555
LINKS = {"100_mbit_s": "100mbit", "1_gbit_s": "1gbit", "unshaped": None}
ROUNDS = {"100_mbit_s": 3, "1_gbit_s": 7, "unshaped": 11}


class _Ranks:
    """The processes of one world."""

    def __init__(self, hosts: NetHosts):
        self._processes = [self._start(hosts, rank) for rank in range(hosts.count)]
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

    def _start(self, hosts: NetHosts, rank: int) -> subprocess.Popen[str]:
        options = {
            "--rank": rank,
            "--world": hosts.count,
            "--host": hosts.address(rank),
            "--store-host": hosts.address(0),
            "--port": PORT,
            "--elements": NUM_ELEMENTS,
        }
        words = [str(word) for option in options.items() for word in option]
        return subprocess.Popen(
            hosts.command(rank, [sys.executable, "-m", "benchmarks.collectives_rank", *words]),
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


def measure_world(world: int, links: dict[str, str | None], rounds: dict[str, int]) -> list[Row]:
    """Measure all systems with one number of ranks."""
    rows: list[Row] = []
    with net_hosts(world) as hosts:
        ranks = _Ranks(hosts)
        try:
            for system in SYSTEMS:
                ranks.measure(system)  # builds and touches what later rounds find there
            for link, rate in links.items():
                hosts.shape(rate)
                rows += _measure_link(ranks, f"n{world}_{link}", rounds[link])
        finally:
            ranks.kill()
    return rows


def _measure_link(ranks: _Ranks, metric: str, num_rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    sent: dict[str, float] = {}
    for _ in range(num_rounds):
        for system in SYSTEMS:
            answers = ranks.measure(system)
            times[system].append(max(answer["s"] for answer in answers))
            sent[system] = max(answer["sent_bytes"] for answer in answers)
    rows: list[Row] = []
    for system in SYSTEMS:
        ratios = [fp32 / own for fp32, own in zip(times["fp32"], times[system], strict=True)]
        rows += [
            Row(system, metric, median(times[system]), "s"),
            Row(system, f"{metric}_speedup", median(ratios), "times fp32"),
            Row(system, f"{metric}_wire_bytes", sent[system], "bytes"),
        ]
        print(f"{metric:>16} {system:>5}: {median(times[system]):8.3f} s, {median(ratios):5.2f} x")
    return rows


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two ranks, 1 Gbit/s, three rounds")
    quick: bool = parser.parse_args().quick
    rows = measure_kernels(quick=quick)
    if quick:
        rows += measure_world(2, {"1_gbit_s": "1gbit"}, {"1_gbit_s": 3})
    else:
        for world in (2, 4):
            rows += measure_world(world, LINKS, ROUNDS)
    publish("collectives", {"num_elements": NUM_ELEMENTS}, rows, quick=quick)


if __name__ == "__main__":
    main()
