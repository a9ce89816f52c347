"""The operations that compression spends its time in, in the fastest tier that this machine has.

All tiers give the same bits: a rank of one and a rank of another can train together.

Process: every rank.  Thread: training.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from trainflow.communication.compression.bfloat16 import (
    NativeBfloat16Kernels,
    TorchBfloat16Kernels,
)
from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.load_times import counted
from trainflow.communication.compression.messages import Messages, Quantised
from trainflow.communication.compression.native import NativeKernels
from trainflow.errors import CommunicationError

logger = logging.getLogger(__name__)

Native = TypeVar("Native")
Eager = TypeVar("Eager")
Gpu = TypeVar("Gpu")


class BlockKernels(Protocol):
    """What is done to blocks. Values, residuals and sums are fp32, 1-D and contiguous.

    A block that holds a number that is not finite is encoded as zeros, and so is one whose largest
    magnitude is below 1e-30: under error feedback it would shrink for ever, and top / absmax
    overflow. Without scales no block is, and numbers that are not finite are codes as others.
    """

    tier: str

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Quantise ``values``; False if some are not finite and no code says so."""
        ...

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Quantise ``values + residual``; ``left`` gets what the codes leave out of it."""
        ...

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write what the codes stand for."""
        ...

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add what the codes stand for."""
        ...

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Quantise the sum of all messages, taken in their order; False if it is not finite.

        What the codes leave out of the sum is added to ``left``.
        """
        ...


def choose_kernels(block_format: BlockFormat, device: torch.device) -> BlockKernels:
    """Return the fastest kernels for tensors on ``device``; warns once of slow ones."""
    if not block_format.has_scales:
        return _bfloat16_kernels(device)
    return fastest(
        lambda: NativeKernels(block_format),
        lambda: EagerKernels(block_format),
        device,
        on_gpu=lambda: _triton_kernels(block_format, device),
    )


def _bfloat16_kernels(device: torch.device) -> BlockKernels:
    """Return the compiled ones where they can be had; plain torch is no reason for a warning."""
    if device.type == "cpu":
        with suppress(CommunicationError):
            return NativeBfloat16Kernels()
    return TorchBfloat16Kernels()


def _triton_kernels(block_format: BlockFormat, device: torch.device) -> BlockKernels:
    try:  # only here: CPU builds of torch bring no Triton
        with counted():
            from trainflow.communication.compression import (  # noqa: PLC0415
                triton_blockwise as gpu,
            )
    except ImportError as error:
        raise CommunicationError(
            f"got {error}, expected Triton, which CUDA builds of torch bring; install triton"
        ) from error
    with counted():
        return gpu.working_kernels(block_format, device)


def fastest(
    native: Callable[[], Native],
    eager: Callable[[], Eager],
    device: torch.device,
    on_gpu: Callable[[], Gpu] | None = None,
) -> Native | Eager | Gpu:
    """Make the compiled tier, or the slower one where that can't be had; warns once of it.

    Args:
        native: makes kernels for CPU tensors; may raise CommunicationError.
        eager: makes kernels for tensors of any device.
        device: where tensors lie.
        on_gpu: makes kernels for tensors of a GPU, if there are some; may raise CommunicationError.
    """
    try:
        if device.type == "cpu":
            return native()
        if device.type == "cuda" and on_gpu is not None:
            return on_gpu()
        reason = f"there are no compiled kernels for {device.type} devices"
    except CommunicationError as error:
        reason = str(error)
    _warn_slow(reason)
    return eager()


_slow_for: list[str] = []


def is_slow() -> bool:
    """Whether something in this process compresses in the slower tier."""
    return bool(_slow_for)


@cache
def _warn_slow(reason: str) -> None:
    """Say once why compression is slow here."""
    _slow_for.append(reason)
    logger.warning("compression runs in plain torch, several times slower: %s", reason)
