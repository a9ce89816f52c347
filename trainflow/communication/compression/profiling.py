"""Measure what a choice of compression depends on: the link between ranks, and their kernels.

Process: every rank.  Thread: training.  Ranks: all of a group, together.  Blocks: for a second on a
link of 100 Mbit/s, for milliseconds on a fast one.
"""

import time
from dataclasses import dataclass

import torch

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.cost_model import Link
from trainflow.communication.compression.kernels import choose_kernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.group import Group

_PROBE_ELEMENTS = 512 * 1024
_NUM_PROBES = 3
_SAMPLE_ELEMENTS = 512 * 1024
_FP32_BYTES = 4


@dataclass(frozen=True)
class Profile:
    """What the slowest rank has; the same on all ranks.

    Attributes:
        link: between ranks.
        element_s: time to quantise, sum and decode one element, by the format's name.
    """

    link: Link
    element_s: dict[str, float]


def measure(group: Group, formats: tuple[BlockFormat, ...], device: torch.device) -> Profile | None:
    """Measure on every rank and take the slowest; None if the group fails meanwhile."""
    own = [_all_reduce_s(group, 1, device), _all_reduce_s(group, _PROBE_ELEMENTS, device)]
    own += [_element_s(each, group.world_size, device) for each in formats]
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    everyone = mine.new_empty(group.world_size * len(own))
    if not group.all_gather(everyone, mine).wait() or group.failure is not None:
        return None
    slowest = everyone.view(group.world_size, -1).amax(dim=0).tolist()
    latency_s, probe_s, *elements_s = slowest
    sent = 2 * (group.world_size - 1) * _PROBE_ELEMENTS * _FP32_BYTES / group.world_size
    link = Link(latency_s, sent / max(probe_s - latency_s, 1e-9))
    return Profile(link, dict(zip((each.name for each in formats), elements_s, strict=True)))


def _all_reduce_s(group: Group, num_elements: int, device: torch.device) -> float:
    """Return the shortest of some all_reduces: the others waited for a rank or for the machine."""
    probe = torch.zeros(num_elements, device=device)
    times: list[float] = []
    for _ in range(_NUM_PROBES):
        start_s = time.perf_counter()
        group.all_reduce(probe).wait()
        times.append(time.perf_counter() - start_s)
    return min(times)


def _element_s(block_format: BlockFormat, world_size: int, device: torch.device) -> float:
    """Return one rank's arithmetic for an element of a bucket."""
    kernels = choose_kernels(block_format, device)
    values = torch.ones(_SAMPLE_ELEMENTS, device=device)
    piece = _SAMPLE_ELEMENTS // world_size
    received = Messages(block_format, piece, world_size, device)
    own = Messages(block_format, piece, 1, device)
    times: list[float] = []
    for _ in range(_NUM_PROBES):
        start_s = time.perf_counter()
        for rank in range(world_size):
            kernels.encode(values[rank * piece :][:piece], received.quantised(rank, piece))
        kernels.reduce_encode(received, own.quantised(0, piece))
        for rank in range(world_size):
            kernels.decode(received.quantised(rank, piece), values[rank * piece :][:piece])
        times.append(time.perf_counter() - start_s)
    return min(times) / _SAMPLE_ELEMENTS
