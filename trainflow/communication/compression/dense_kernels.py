"""What PowerSGD does to whole gradients, in the faster tier that this machine has.

A rank of one tier and a rank of the other can train together: their products differ in the last
bits, and are summed over ranks before anything comes of them; all else is the same in both, and
whatever the number of threads. On a GPU torch's library makes columns orthonormal: there all ranks
must have the same one, on the same kind of GPU.

Process: every rank.  Thread: training; the compiled tier releases the interpreter's lock.
"""

import math
from ctypes import CDLL, c_float, c_int64, c_void_p
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.compression.build import load_library
from trainflow.communication.compression.kernels import fastest

_NUM_SUMS = 4096
_LEAST_RATIO = 2.0**-20


class DenseKernels(Protocol):
    """Tensors are fp32 and contiguous."""

    tier: str

    def add(self, one: Tensor, other: Tensor, sums: Tensor) -> None:
        """Write the sum of two 1-D tensors."""
        ...

    def project(self, matrix: Tensor, q: Tensor, p: Tensor) -> None:
        """Write M Q to ``p``; M is rows x columns, Q columns x rank."""
        ...

    def project_back(self, matrix: Tensor, p: Tensor, q: Tensor) -> None:
        """Write Mt P to ``q``."""
        ...

    def orthonormalise(self, p: Tensor, first: int) -> int:
        """Make the columns of P orthonormal, in place, from ``first`` on; those before are so.

        Returns:
            The first column of which no more than rounding errors lies outside of those before, or
            their number. It holds garbage then; those behind it are as they were.
        """
        ...

    def expand(
        self, p: Tensor, q: Tensor, result: Tensor, wanted: Tensor | None, share: float
    ) -> None:
        """Write P Qt to ``result``, and take ``share`` of it from ``wanted``.

        Args:
            p: rows x rank.
            q: columns x rank.
            result: rows x columns.
            wanted: rows x columns, or None.
            share: of the result.
        """
        ...


class NativeDenseKernels:
    """See `DenseKernels`; CPU tensors.

    Raises:
        CommunicationError: they can't be built here.
    """

    tier = "native"

    def __init__(self) -> None:
        self._library = _declared_library()

    def add(self, one: Tensor, other: Tensor, sums: Tensor) -> None:
        """Write the sum of two tensors."""
        self._library.add_into(one.data_ptr(), other.data_ptr(), one.numel(), sums.data_ptr())

    def project(self, matrix: Tensor, q: Tensor, p: Tensor) -> None:
        """Write M Q."""
        transposed, shape = q.T.contiguous(), (*matrix.shape, p.shape[1])
        self._library.project(matrix.data_ptr(), transposed.data_ptr(), *shape, p.data_ptr())

    def project_back(self, matrix: Tensor, p: Tensor, q: Tensor) -> None:
        """Write Mt P."""
        transposed, shape = q.new_empty(q.shape[::-1]), (*matrix.shape, p.shape[1])
        self._library.project_back(matrix.data_ptr(), p.data_ptr(), *shape, transposed.data_ptr())
        q.copy_(transposed.T)

    def orthonormalise(self, p: Tensor, first: int) -> int:
        """Make columns orthonormal."""
        columns, factors = p.T.contiguous(), p.new_empty(p.shape[1])
        sizes = (*p.shape, first)
        done: int = self._library.orthonormalise(columns.data_ptr(), *sizes, factors.data_ptr())
        p[:, first:done] = columns[first:done].T
        return done

    def expand(
        self, p: Tensor, q: Tensor, result: Tensor, wanted: Tensor | None, share: float
    ) -> None:
        """Write P Qt."""
        transposed = q.T.contiguous()
        self._library.expand(
            p.data_ptr(),
            transposed.data_ptr(),
            *(*result.shape, p.shape[1]),
            share,
            result.data_ptr(),
            None if wanted is None else wanted.data_ptr(),
        )


class EagerDenseKernels:
    """See `DenseKernels`; tensors of any device."""

    tier = "eager"

    def add(self, one: Tensor, other: Tensor, sums: Tensor) -> None:
        """Write the sum of two tensors."""
        torch.add(one, other, out=sums)

    def project(self, matrix: Tensor, q: Tensor, p: Tensor) -> None:
        """Write M Q."""
        torch.mm(matrix, q, out=p)

    def project_back(self, matrix: Tensor, p: Tensor, q: Tensor) -> None:
        """Write Mt P."""
        torch.mm(matrix.T, p, out=q)

    def orthonormalise(self, p: Tensor, first: int) -> int:
        """Make columns orthonormal; on a CPU as the compiled tier does, operation by operation."""
        if p.device.type != "cpu":
            p.copy_(torch.linalg.qr(p).Q)
            return p.shape[1]
        columns = p.T.contiguous()
        done = next((k for k in range(first, p.shape[1]) if not _detach(columns, k)), p.shape[1])
        p[:, first:done] = columns[first:done].T
        return done

    def expand(
        self, p: Tensor, q: Tensor, result: Tensor, wanted: Tensor | None, share: float
    ) -> None:
        """Write P Qt; a product, rounded, then a sum, rounded."""
        torch.mul(p[:, :1], q[:, 0], out=result)
        for k in range(1, p.shape[1]):
            result.add_(p[:, k : k + 1] * q[:, k])
        if wanted is not None:
            wanted.sub_(result * torch.tensor(share, dtype=torch.float32, device=result.device))


def _detach(columns: Tensor, k: int) -> bool:
    """Make the k-th row orthogonal to those before, and of length 1; False if nothing is left."""
    before, own = columns[:k], columns[k]
    largest = own.abs().max()
    own.div_(largest + (largest == 0))
    length_before = _length(own)
    for _ in range(2):
        for factor, other in zip(_dot(before, own), before, strict=True):
            own.sub_(factor * other)
    length = _length(own)
    if length <= _LEAST_RATIO * length_before:  # not so, if one of them is NaN
        return False
    own.div_(length)
    return True


def _length(column: Tensor) -> Tensor:
    """Return it rounded correctly, as C++ does; torch's own square root isn't."""
    return torch.tensor(math.sqrt(float(_dot(column, column))))


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Multiply and add up along the last dimension, in the order of ``dot`` in low_rank.cpp."""
    products = one * other
    size = min(products.shape[-1], _NUM_SUMS)
    sums = products.new_zeros(*products.shape[:-1], size)
    for part in products.split(_NUM_SUMS, dim=-1):
        sums[..., : part.shape[-1]] += part
    while size > 1:
        half = (size + 1) // 2
        sums[..., : size - half] += sums[..., half:size]
        size = half
    return sums[..., 0]


def choose_dense_kernels(device: torch.device) -> DenseKernels:
    """Return the fastest kernels for tensors on ``device``; warns once of slow ones."""
    return fastest(NativeDenseKernels, EagerDenseKernels, device)


@cache
def _declared_library() -> CDLL:
    library = load_library("low_rank")
    pointer, number = c_void_p, c_int64
    library.add_into.restype = library.expand.restype = None
    library.project.restype = library.project_back.restype = None
    library.add_into.argtypes = (pointer, pointer, number, pointer)
    sizes = (number, number, number)
    library.project.argtypes = library.project_back.argtypes = (pointer, pointer, *sizes, pointer)
    library.orthonormalise.restype = number
    library.orthonormalise.argtypes = (pointer, *sizes, pointer)
    library.expand.argtypes = (pointer, pointer, *sizes, c_float, pointer, pointer)
    return library
