"""One rank of the collectives benchmark: sums the same payload by every system, by turns.

Process: a rank, on a host of its own.  Ranks: all run the same rounds of the same systems.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainflow.communication.aggregation import Aggregator, choose_aggregator
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.epochs import EpochId, EpochSpec

SYSTEMS = ("fp32", "bf16", "int8", "int4")
TIMEOUT_S = 300.0
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
_COMPRESSION: dict[str, Any] = {"fp32": "none"}

Sum = Callable[[Tensor], None]


def main() -> None:
    """Connect, and do what the harness says, a line of its input a turn, until that ends."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--world", "--port", "--elements"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--store-host", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    group = _connect(options)
    device = torch.device("cpu")
    aggregators = {
        name: choose_aggregator(_COMPRESSION.get(name, name), deterministic=True, device=device)
        for name in SYSTEMS
    }
    generator = torch.Generator().manual_seed(options.rank)
    gradient = torch.randn(options.elements, generator=generator)
    bucket = torch.empty_like(gradient)
    print("ready", flush=True)
    while name := input():
        bucket.copy_(gradient)
        print(json.dumps(_measure(aggregators[name], bucket, group)), flush=True)


def _measure(aggregator: Aggregator, bucket: Tensor, group: Group) -> dict[str, float]:
    """Sum once; the clock starts when all ranks have come."""
    assert group.all_reduce(torch.zeros(1)).wait()
    sent_before, start_s = int(_SENT.read_text()), time.perf_counter()
    assert aggregator.start(bucket, group).wait()
    took_s = time.perf_counter() - start_s
    assert group.all_reduce(torch.zeros(1)).wait()
    return {"s": took_s, "sent_bytes": int(_SENT.read_text()) - sent_before}


def _connect(options: argparse.Namespace) -> Group:
    store = dist.TCPStore(
        options.store_host,
        options.port,
        is_master=options.rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    connect = GlooConnector(
        options.host, connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
    )
    transport = connect(store, options.rank, options.world)
    members = tuple(f"rank{rank}" for rank in range(options.world))
    spec = EpochSpec(EpochId(1, 1), members, options.store_host, options.port)
    group = Group(spec, options.rank, transport, lambda _epoch, reason: print(reason, flush=True))
    group.store = store  # type: ignore[attr-defined]  lives as long as the group
    return group


if __name__ == "__main__":
    main()
