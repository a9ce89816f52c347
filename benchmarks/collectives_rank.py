"""One rank of the collectives benchmark: sums the same payload by every system, by turns.

Process: a rank, on a host of its own.  Ranks: all run the same rounds of the same systems.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.peers.power_sgd import SIDE, TorchPowerSgd
from trainflow.communication.aggregation import choose_aggregator
from trainflow.communication.compression.low_rank import LowRankScheme
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.config.communication import CommunicationConfig
from trainflow.epochs import EpochId, EpochSpec

SYSTEMS = ("fp32", "bf16", "fp8", "int8", "int4", "top_k", "power_sgd", "torch_power_sgd")
NODE_SYSTEMS = ("fp32", "int8", "int8_by_node", "int4", "int4_by_node")
TIMEOUT_S = 300.0
_BY_NODE = "_by_node"
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
_COMPRESSION: dict[str, Any] = {"fp32": "none"}
_DEVICE = torch.device("cpu")

Sum = Callable[[Tensor], float]


def main() -> None:
    """Connect, and do what the harness says, a line of its input a turn, until that ends."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--world", "--ranks-per-host", "--port", "--elements"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--store-host", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    group = _connect(options)
    names = SYSTEMS if options.ranks_per_host == 1 else NODE_SYSTEMS
    sums = {name: _make_sum(name, group, options.elements) for name in names}
    gradient = torch.randn(options.elements, generator=torch.Generator().manual_seed(options.rank))
    bucket = torch.empty_like(gradient)
    print("ready", flush=True)
    while name := input():
        bucket.copy_(gradient)
        _meet(group)
        sent_before = int(_SENT.read_text())
        took_s = sums[name](bucket)
        _meet(group)
        answer = {"s": took_s, "sent_bytes": int(_SENT.read_text()) - sent_before}
        print(json.dumps(answer), flush=True)


def _make_sum(name: str, group: Group, num_elements: int) -> Sum:
    if name == "torch_power_sgd":
        return TorchPowerSgd(num_elements).sum_s
    kind = name.removesuffix(_BY_NODE)
    settings = CommunicationConfig(
        compression=_COMPRESSION.get(kind, kind), hierarchical=name.endswith(_BY_NODE)
    )
    aggregator = choose_aggregator(settings, deterministic=False, device=_DEVICE)
    if isinstance(aggregator, LowRankScheme):
        shape = SIDE, SIDE
        count = num_elements // SIDE**2
        aggregator = aggregator.for_bucket([(f"matrix {k}", shape) for k in range(count)])
    sizes = [num_elements] if settings.feeds_back else []
    residuals = Residuals.of_sizes(sizes, _DEVICE)

    def sum_s(bucket: Tensor) -> float:
        feedback = residuals.feedback(0) if sizes else None
        start_s = time.perf_counter()
        assert aggregator.start(bucket, group, feedback).wait()
        return time.perf_counter() - start_s

    return sum_s


def _meet(group: Group) -> None:
    """Wait until all ranks are here."""
    assert group.all_reduce(torch.zeros(1)).wait()


def _connect(options: argparse.Namespace) -> Group:
    """Connect as a run does; the default group, for the peer, goes over the same interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = dist.TCPStore(
        options.store_host,
        options.port,
        is_master=options.rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("default", store),
        rank=options.rank,
        world_size=options.world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    connect = GlooConnector(
        options.host, connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
    )
    transport = connect(dist.PrefixStore("own", store), options.rank, options.world)
    members = tuple(f"rank{rank}" for rank in range(options.world))
    nodes = tuple(rank // options.ranks_per_host for rank in range(options.world))
    spec = EpochSpec(EpochId(1, 1), members, options.store_host, options.port, nodes=nodes)
    return Group(spec, options.rank, transport, lambda _epoch, reason: print(reason, flush=True))


if __name__ == "__main__":
    main()
