"""What copies of a sharded model's state to other nodes cost a step that its link bounds.

    make bench-streaming           # or: python -m benchmarks.streaming [--quick]

Two ranks on hosts of their own (network namespaces) share a model over a link that takes most of a
step. A run that sends copies of its shards to the other node all the time, and one that sends none,
take turns, a block of steps each; a pair of neighbouring blocks gives one ratio of median step
times. A step gathers the model eight times and sums its gradients once, which is three times the
bytes of a copy. Then copies are given so little of the link that they are behind by several steps,
and a rank's node is killed: what was lost is compared with the lag. Needs root.

Process: the harness; a driver runs on the head's host.
"""

import argparse
import json
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.report import Row, interval_of_median, publish
from benchmarks.streaming_driver import NUM_RANKS, Found, Plan
from benchmarks.workload import SMALL, num_state_bytes
from trainflow.cli.stop_signals import ending_in_order
from trainflow.coordination.chaos.net_hosts import HEAD, NetHosts, net_hosts
from trainflow.coordination.local_cluster import LocalCluster

_NODE_CPUS = 2
_WITHIN_S = 1500.0
RATE = "200mbit"
CONGESTION_CONTROL = "cubic"
"""Linux's own choice, where nobody has made another."""

QUICK_RATE = "800mbit"
FULL: dict[str, Any] = {"num_blocks": 13, "steps_a_block": 6}
QUICK: dict[str, Any] = {"num_blocks": 2, "steps_a_block": 3}
FULL_SLOW: dict[str, Any] = {"num_slow_steps": 30, "slow_within_s": 8.0}
QUICK_SLOW: dict[str, Any] = {"num_slow_steps": 0, "slow_within_s": 8.0}


def measure(hosts: NetHosts, *, quick: bool) -> Found:
    """Start a cluster and measure on it; the link has its rate once Ray has started."""
    num_nodes = NUM_RANKS if quick else NUM_RANKS + 1
    with LocalCluster.start(
        head_cpus=0, num_nodes=num_nodes, node_cpus=_NODE_CPUS, sites=hosts
    ) as cluster:
        hosts.shape(QUICK_RATE if quick else RATE)
        shape = QUICK | QUICK_SLOW if quick else FULL | FULL_SLOW
        pids = {str(node.host): node.pid for node in cluster.nodes}
        plan = Plan(address=cluster.address, node_pids=pids, **shape)
        command = [sys.executable, "-m", "benchmarks.streaming_driver", plan.model_dump_json()]
        done = subprocess.run(
            hosts.command(HEAD, command),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_WITHIN_S,
        )
    return Found.model_validate_json(done.stdout.strip().splitlines()[-1])


def to_rows(found: Found) -> list[Row]:
    """Reduce what was found to figures."""
    ratios = [ours / bare for ours, bare in zip(found.copies_s, found.none_s, strict=True)]
    low, high = interval_of_median(ratios)
    rows = [
        Row("copies", "step_ratio", median(ratios), "1"),
        Row("copies", "step_ratio_low", low, "1"),
        Row("copies", "step_ratio_high", high, "1"),
        Row("copies", "step_s", median(found.copies_s), "s"),
        Row("none", "step_s", median(found.none_s), "s"),
        Row("copies", "pairs", len(ratios), "pairs"),
        *(Row(side, "cpu_s_a_step", spent_s, "s") for side, spent_s in found.cpu_s.items()),
        *_lag_rows("copies", found.lags),
    ]
    if found.lost is not None:
        rows += _lag_rows("slow_copies", found.slow_lags)
        rows += [
            Row("slow_copies", "step_s", found.slow_step_s, "s"),
            Row("slow_copies", "lag_bound_steps", _bound_steps(found), "steps"),
            Row("slow_copies", "steps_lost", found.lost, "steps"),
        ]
    return rows


def _bound_steps(found: Found) -> float:
    """Return how many steps two copies may take."""
    return 2 * FULL_SLOW["slow_within_s"] / found.slow_step_s


def _lag_rows(system: str, lags: list[int | None]) -> list[Row]:
    known = [lag for lag in lags if lag is not None]
    return [
        Row(system, "lag_median_steps", median(known), "steps"),
        Row(system, "lag_most_steps", max(known), "steps"),
    ]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps over a faster link")
    quick: bool = parser.parse_args().quick
    with net_hosts(NUM_RANKS + 2, CONGESTION_CONTROL) as hosts:
        found = measure(hosts, quick=quick)
    conditions = {
        "ranks": NUM_RANKS,
        "link": QUICK_RATE if quick else RATE,
        "state_bytes_of_a_rank": num_state_bytes(SMALL) // NUM_RANKS,
        "slow_copy_within_s": FULL_SLOW["slow_within_s"],
        "raw": json.loads(found.model_dump_json()),
    }
    publish("streaming", conditions, to_rows(found), quick=quick)


if __name__ == "__main__":
    main()
