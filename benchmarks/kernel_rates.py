"""How fast one thread quantises and adds up, beside a copy of the same memory.

Process: the harness of the collectives benchmark.
"""

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from benchmarks.report import Row
from trainflow.communication.compression.block_format import INT4, INT8, BlockFormat
from trainflow.communication.compression.kernels import choose_kernels
from trainflow.communication.compression.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Callable

_NUM_ELEMENTS = 4 * 1024 * 1024
_RANKS = 4
_CPU = torch.device("cpu")


def measure_kernels(*, quick: bool) -> list[Row]:
    """Time each kernel and a copy by turns, on one thread; rates are in bytes of fp32 input."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [row for each in (INT8, INT4) for row in _measure(each, 10 if quick else 60)]
    finally:
        torch.set_num_threads(threads)
    return rows


def _measure(block_format: BlockFormat, num_rounds: int) -> list[Row]:
    kernels = choose_kernels(block_format, _CPU)
    values = torch.randn(_NUM_ELEMENTS)
    other, residual, left = torch.empty_like(values), values * 0.01, torch.empty_like(values)
    message = Messages(block_format, _NUM_ELEMENTS, 1, _CPU).quantised(0, _NUM_ELEMENTS)
    part = _NUM_ELEMENTS // _RANKS
    received = Messages(block_format, part, _RANKS, _CPU)
    for rank in range(_RANKS):
        kernels.encode(values[rank * part :][:part], received.quantised(rank, part))
    own = Messages(block_format, part, 1, _CPU).quantised(0, part)
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
            start_s = time.perf_counter()
            operation()
            times[name].append(time.perf_counter() - start_s)
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
