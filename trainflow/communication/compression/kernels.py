"""The operations that compression spends its time in, in the fastest tier that this machine has.

Both tiers give the same bits: a rank of one and a rank of the other can train together.

Process: every rank.  Thread: training.
"""

import logging
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.messages import Messages, Quantised
from trainflow.communication.compression.native import NativeKernels
from trainflow.errors import CommunicationError

logger = logging.getLogger(__name__)


class BlockKernels(Protocol):
    """What is done to blocks. Values, residuals and sums are fp32, 1-D and contiguous.

    A block that holds a number that is not finite is encoded as zeros, and so is one whose largest
    magnitude is below 1e-30: under error feedback it would shrink for ever, and top / absmax
    overflow.
    """

    tier: str

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Quantise ``values``; False if some are not finite."""
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
    if device.type != "cpu":
        warn_slow(f"there are no compiled kernels for {device.type} devices")
        return EagerKernels(block_format)
    try:
        return NativeKernels(block_format)
    except CommunicationError as error:
        warn_slow(str(error))
        return EagerKernels(block_format)


_slow_for: list[str] = []


def is_slow() -> bool:
    """Whether something in this process compresses in the slower tier."""
    return bool(_slow_for)


@cache
def warn_slow(reason: str) -> None:
    """Say once why compression is slow here."""
    _slow_for.append(reason)
    logger.warning("compression runs in plain torch, several times slower: %s", reason)
