"""How fast one thread, and a GPU if there is one, quantises and adds up, beside a copy.

Process: the harness of the collectives benchmark.
"""

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from benchmarks.report import Row
from trainflow.communication.compression.block_format import FP8, INT4, INT8, BlockFormat
from trainflow.communication.compression.kernels import choose_kernels
from trainflow.communication.compression.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUM_ELEMENTS = {"cpu": 4 * 1024 * 1024, "cuda": 64 * 1024 * 1024}  # a GPU would cache the former
_RANKS = 4


def measure_kernels(*, quick: bool, devices: "Sequence[str]" = ()) -> list[Row]:
    """Time each kernel and a copy by turns, on one thread; rates are in bytes of fp32 input.

    Args:
        quick: fewer rounds.
        devices: "cpu", "cuda", or both; else those that there are.
    """
    devices = devices or (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    threads, num_rounds = torch.get_num_threads(), 10 if quick else 60
    torch.set_num_threads(1)
    try:
        rows = [
            row
            for device in devices
            for each in (INT8, INT4, FP8)
            for row in _measure(each, torch.device(device), num_rounds)
        ]
    finally:
        torch.set_num_threads(threads)
    return rows


def _measure(block_format: BlockFormat, device: torch.device, num_rounds: int) -> list[Row]:
    kernels, num_elements = choose_kernels(block_format, device), _NUM_ELEMENTS[device.type]
    values = torch.randn(num_elements, device=device)
    other, residual, left = torch.empty_like(values), values * 0.01, torch.empty_like(values)
    message = Messages(block_format, num_elements, 1, device).quantised(0, num_elements)
    part = num_elements // _RANKS
    received = Messages(block_format, part, _RANKS, device)
    for rank in range(_RANKS):
        kernels.encode(values[rank * part :][:part], received.quantised(rank, part))
    own = Messages(block_format, part, 1, device).quantised(0, part)
    kernels.encode(values, message)
    operations: dict[str, Callable[[], object]] = {
        "copy": lambda: other.copy_(values),
        "encode": lambda: kernels.encode(values, message),
        "encode_with_feedback": lambda: kernels.encode_with_feedback(
            values, residual, message, left
        ),
        "decode": lambda: kernels.decode(message, other),
        "decode_add": lambda: kernels.decode_add(message, other),
        f"reduce_encode_{_RANKS}": lambda: kernels.reduce_encode(received, own),
    }
    times: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(num_rounds):
        for name, operation in operations.items():
            times[name].append(_seconds(operation, device))
    rows: list[Row] = []
    for name, taken in times.items():
        ratio = median(copy / own_s for copy, own_s in zip(times["copy"], taken, strict=True))
        rate = values.nbytes / median(taken) / 1e9
        metric = f"{name}_{kernels.tier}"
        rows += [
            Row(block_format.name, metric, rate, "GB/s of fp32 input"),
            Row(block_format.name, f"{metric}_ratio", ratio, "times a copy's rate"),
        ]
        print(f"{block_format.name:>5} {metric:>30}: {rate:6.2f} GB/s, {ratio:5.2f} of a copy")
    return rows


def _seconds(operation: "Callable[[], object]", device: torch.device) -> float:
    """Time one call, until the device is through with it."""
    start_s = time.perf_counter()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s
