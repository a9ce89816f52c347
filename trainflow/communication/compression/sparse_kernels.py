"""Selecting a gradient's largest elements, in the faster tier that this machine has.

Both tiers select the same elements.

Process: every rank.  Thread: training; the compiled tier releases the interpreter's lock.
"""

from ctypes import CDLL, c_float, c_int64, c_void_p
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.compression.build import load_library
from trainflow.communication.compression.kernels import fastest
from trainflow.communication.error_feedback import Feedback


class SparseKernels(Protocol):
    """What is done to a bucket: fp32, 1-D, contiguous. Indices are int32, fewer than 2^31."""

    tier: str

    def select(
        self, values: Tensor, feedback: Feedback, threshold: float, indices: Tensor, into: Tensor
    ) -> int:
        """Move elements of ``values + feedback.kept`` of at least ``threshold`` out.

        ``indices`` and ``into`` get the first of them, as many as there is room for;
        ``feedback.left`` gets the rest, with zeros in their places; ``values`` becomes zero.

        Returns:
            How many were moved; -1 if some are not finite: what was written doesn't count then.
        """
        ...

    def add(self, indices: Tensor, values: Tensor, sums: Tensor) -> None:
        """Add ``values`` to ``sums`` at ``indices``, each of which is there once."""
        ...


class NativeSparseKernels:
    """See `SparseKernels`; CPU tensors.

    Raises:
        CommunicationError: they can't be built here.
    """

    tier = "native"

    def __init__(self) -> None:
        self._library = _declared_library()

    def select(
        self, values: Tensor, feedback: Feedback, threshold: float, indices: Tensor, into: Tensor
    ) -> int:
        """Move large elements out."""
        return int(
            self._library.select_largest(
                values.data_ptr(),
                feedback.kept.data_ptr(),
                values.numel(),
                threshold,
                indices.data_ptr(),
                into.data_ptr(),
                indices.numel(),
                feedback.left.data_ptr(),
            )
        )

    def add(self, indices: Tensor, values: Tensor, sums: Tensor) -> None:
        """Add values at indices."""
        self._library.add_selected(
            indices.data_ptr(), values.data_ptr(), indices.numel(), sums.data_ptr()
        )


class EagerSparseKernels:
    """See `SparseKernels`; tensors of any device."""

    tier = "eager"

    def select(
        self, values: Tensor, feedback: Feedback, threshold: float, indices: Tensor, into: Tensor
    ) -> int:
        """Move large elements out."""
        torch.add(values, feedback.kept, out=feedback.left)
        values.zero_()
        magnitudes = feedback.left.abs()
        if not magnitudes.max().isfinite():
            return -1
        places = (magnitudes >= threshold).nonzero().view(-1)[: indices.numel()]
        count = places.numel()
        indices[:count] = places.to(torch.int32)
        into[:count] = feedback.left[places]
        feedback.left[places] = 0.0
        return count

    def add(self, indices: Tensor, values: Tensor, sums: Tensor) -> None:
        """Add values at indices."""
        places = indices.to(torch.int64)
        sums[places] = sums[places] + values


def choose_sparse_kernels(device: torch.device) -> SparseKernels:
    """Return the fastest kernels for tensors on ``device``; warns once of slow ones."""
    return fastest(NativeSparseKernels, EagerSparseKernels, device)


@cache
def _declared_library() -> CDLL:
    library = load_library("top_k")
    pointer, number = c_void_p, c_int64
    library.select_largest.restype = number
    library.select_largest.argtypes = (
        *(pointer, pointer, number, c_float),
        *(pointer, pointer, number, pointer),
    )
    library.add_selected.restype = None
    library.add_selected.argtypes = (pointer, pointer, number, pointer)
    return library
