"""Send a gradient's matrices as products of two thin ones: PowerSGD.

Vogels et al. 2019, arXiv 1905.13727. One step of power iteration a sum: each rank multiplies its
matrix M (m x n) with the last step's Q (n x r); the products' sum P is made orthonormal; the sum of
the products of each M, transposed, with P is the new Q; P Qt stands for the sum of all M. What it
leaves out each rank keeps: its own M less its share, one N-th, of the result.

Ranks hold the same P and Q bit for bit: both are summed over ranks, and P is made orthonormal in
one fixed order, whatever a rank's processor and threads; on GPUs by their library, which must be
the same. The digest in the commit record tells if bits differ. Q is state of the run: see
`LowRankSum.factors`.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order, and start all before they wait for the first.  Blocks: ``wait``.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import xxhash
from torch import Tensor

from trainflow.communication.compression.dense_kernels import DenseKernels, choose_dense_kernels
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group, Pending

_FP32_BYTES = 4


@dataclass(frozen=True)
class _Matrix:
    """A gradient in a bucket, as a matrix; ``rank`` 0: its factors would be no smaller."""

    name: str
    start: int
    num_rows: int
    num_columns: int
    rank: int

    @property
    def num_elements(self) -> int:
        return self.num_rows * self.num_columns

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.num_elements].view(
            self.num_rows, self.num_columns
        )


class LowRankScheme:
    """Makes an aggregator for each bucket, which must know what lies in it.

    Args:
        rank: columns of the factors.
        device: where buckets lie.
    """

    def __init__(self, rank: int, device: torch.device):
        self.wire = f"matrices of rank {rank}"
        self._rank = rank
        self._device = device
        self._queue: deque[_UnderWay] = deque()

    def for_bucket(self, gradients: Sequence[tuple[str, tuple[int, ...]]]) -> "LowRankSum":
        """Return the aggregator of a bucket with these gradients, by name and shape, in order."""
        matrices: list[_Matrix] = []
        start = 0
        for name, shape in gradients:
            rows = shape[0] if shape else 1
            columns = prod(shape[1:])
            is_smaller = self._rank * (rows + columns) < rows * columns
            matrices.append(_Matrix(name, start, rows, columns, self._rank if is_smaller else 0))
            start += rows * columns
        return LowRankSum(matrices, self.wire, self._device, self._queue)


class LowRankSum:
    """Sums one bucket; see `Aggregator`."""

    def __init__(
        self,
        matrices: Sequence[_Matrix],
        wire: str,
        device: torch.device,
        queue: "deque[_UnderWay]",
    ):
        self.wire = wire
        self.queue = queue
        self._kernels: DenseKernels = choose_dense_kernels(device)
        self._thin = [matrix for matrix in matrices if matrix.rank]
        self._whole = [matrix for matrix in matrices if not matrix.rank]
        firsts = [_first_factor(matrix) for matrix in self._thin]
        self._kept = torch.cat([torch.empty(0), *firsts]).to(device)
        self._new = torch.empty_like(self._kept)
        self._is_new = False
        self._num_thin = sum(matrix.num_rows * matrix.rank for matrix in self._thin)
        self._num_whole = sum(matrix.num_elements for matrix in self._whole)

    def begin(self) -> None:
        """A step begins: what the last try has come to is void."""
        self._is_new = False

    def keep(self) -> None:
        """The step was applied: the next one begins from its factors."""
        if self._is_new:
            self._kept, self._new = self._new, self._kept
            self._is_new = False

    def factors(self) -> dict[str, Tensor]:
        """Return Q of each matrix, by its gradient's name: state of the run; views."""
        return {matrix.name: q for matrix, q in self._columns(self._kept)}

    def start(
        self, bucket: Tensor, group: Group, feedback: Feedback | None = None
    ) -> "_UnderWay | _Done":
        """Multiply with Q and send that off."""
        if group.world_size == 1:
            if feedback is not None:
                feedback.spend(bucket)
            return _Done()
        wanted = bucket.to(torch.float32)  # itself, unless it is of a narrower type
        if feedback is not None:
            self._kernels.add(wanted, feedback.kept, feedback.left)
            wanted = feedback.left
        sent = wanted.new_empty(self._num_thin + self._num_whole)
        for (matrix, p), (_, q) in zip(self._rows(sent), self._columns(self._kept), strict=True):
            self._kernels.project(matrix.of(wanted), q, p)
        for matrix, part in self._parts(sent):
            part.copy_(matrix.of(wanted))
        under_way = _UnderWay(self, _Payload(bucket, wanted, sent, feedback is not None), group)
        self.queue.append(under_way)
        return under_way

    def turn(self, payload: "_Payload") -> None:
        """Make P orthonormal, in place, and multiply with it."""
        columns = self._columns(self._new)
        for (matrix, p), (_, q) in zip(self._rows(payload.sent), columns, strict=True):
            self._orthonormalise(matrix, p)
            self._kernels.project_back(matrix.of(payload.wanted), p, q)

    def send_factors(self, group: Group) -> Pending:
        """Sum Q over ranks."""
        return group.all_reduce(self._new)

    def finish(self, payload: "_Payload", world_size: int) -> None:
        """Write P Qt to the bucket, and what it leaves out to where the wanted sum was."""
        self._is_new = True
        columns = self._columns(self._new)
        for (matrix, p), (_, q) in zip(self._rows(payload.sent), columns, strict=True):
            bucket = matrix.of(payload.bucket)
            is_fp32 = bucket.dtype is torch.float32
            result = bucket if is_fp32 else torch.empty_like(bucket, dtype=torch.float32)
            wanted = matrix.of(payload.wanted) if payload.is_fed_back else None
            self._kernels.expand(p, q, result, wanted, 1.0 / world_size)
            if not is_fp32:
                bucket.copy_(result)
        for matrix, part in self._parts(payload.sent):
            matrix.of(payload.bucket).copy_(part)
            if payload.is_fed_back:
                matrix.of(payload.wanted).zero_()

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:  # noqa: ARG002  the shapes say all
        """2 (N-1)/N of both factors, in fp32."""
        num_sent = self._num_thin + self._num_whole + self._kept.numel()
        return 2 * (world_size - 1) * num_sent * _FP32_BYTES // world_size

    def _orthonormalise(self, matrix: _Matrix, p: Tensor) -> None:
        """A column of which nothing is new gives way to noise: zeros would stay so in all steps."""
        done, num_tries = self._kernels.orthonormalise(p, 0), 0
        while done < matrix.rank:
            num_tries += 1
            p[:, done] = _noise(f"{matrix.name} {num_tries}", matrix.num_rows).to(p.device)
            done = self._kernels.orthonormalise(p, done)

    def _rows(self, sent: Tensor) -> Iterator[tuple[_Matrix, Tensor]]:
        sizes = [matrix.num_rows * matrix.rank for matrix in self._thin]
        parts = sent[: self._num_thin].split(sizes)
        return ((m, part.view(-1, m.rank)) for m, part in zip(self._thin, parts, strict=True))

    def _columns(self, factors: Tensor) -> Iterator[tuple[_Matrix, Tensor]]:
        parts = factors.split([matrix.num_columns * matrix.rank for matrix in self._thin])
        return ((m, part.view(-1, m.rank)) for m, part in zip(self._thin, parts, strict=True))

    def _parts(self, sent: Tensor) -> Iterator[tuple[_Matrix, Tensor]]:
        parts = sent[self._num_thin :].split([matrix.num_elements for matrix in self._whole])
        shaped = zip(self._whole, parts, strict=True)
        return ((m, part.view(m.num_rows, m.num_columns)) for m, part in shaped)


def _first_factor(matrix: _Matrix) -> Tensor:
    """Return random numbers, the same on every rank."""
    return torch.randn(matrix.num_columns * matrix.rank, generator=_generator(matrix.name))


def _noise(name: str, size: int) -> Tensor:
    """Return numbers around zero, the same bits on every rank: uniform ones take no library."""
    return torch.rand(size, generator=_generator(name)) - 0.5


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(name.encode()) >> 1)


class _Done:
    """A bucket that is its own sum."""

    def wait(self) -> bool:
        """Say so."""
        return True


@dataclass(frozen=True)
class _Payload:
    """A bucket, what is wanted of this rank, P and what is sent whole, and who has the rest."""

    bucket: Tensor
    wanted: Tensor
    sent: Tensor
    is_fed_back: bool


class _UnderWay:
    """A bucket on its way."""

    def __init__(self, owner: LowRankSum, payload: _Payload, group: Group):
        self._owner = owner
        self._payload = payload
        self._group = group
        self._hop = group.all_reduce(payload.sent)
        self._succeeded = self._is_finite = self._is_done = False

    def turn(self) -> None:
        """Wait for P and send Q off; every rank does, whatever became of P."""
        self._succeeded = self._hop.wait()
        self._is_finite = self._succeeded and bool(self._payload.sent.isfinite().all())
        if self._is_finite:
            self._owner.turn(self._payload)
        self._hop = self._owner.send_factors(self._group)

    def wait(self) -> bool:
        """Block until the bucket holds the sum; False if it holds garbage."""
        if self._is_done:
            return self._succeeded
        while self._owner.queue:  # with the first all turn: their second hops overlap
            self._owner.queue.popleft().turn()
        self._is_done = True
        self._succeeded = self._hop.wait() and self._succeeded
        if self._is_finite and self._succeeded:
            self._owner.finish(self._payload, self._group.world_size)
        elif self._succeeded:
            self._payload.bucket.fill_(float("nan"))
        return self._succeeded
