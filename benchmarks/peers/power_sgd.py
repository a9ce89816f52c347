"""torch's own PowerSGD hook, as users register it with DistributedDataParallel.

The payload is the gradient of a module of square matrices, all in one bucket. What is timed is what
the hook does with that bucket: from its call to its future's result.

Process: a rank of the collectives benchmark.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

RANK = 4
SIDE = 2048
_FIRST_STEP = 2  # the least that it takes: until then it sums uncompressed
_BUCKET_MB = 1024


class TorchPowerSgd:
    """Sums a gradient of a multiple of SIDE * SIDE elements; needs the default process group."""

    def __init__(self, num_elements: int):
        matrices = [nn.Parameter(torch.zeros(SIDE, SIDE)) for _ in range(num_elements // SIDE**2)]
        self._matrices = nn.ParameterList(matrices)
        self._model = DistributedDataParallel(_Product(self._matrices), bucket_cap_mb=_BUCKET_MB)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=RANK, start_powerSGD_iter=_FIRST_STEP
        )
        self._model.register_comm_hook(state, self._timed)
        self._began_s = self._ended_s = 0.0
        for _ in range(_FIRST_STEP + 1):
            self.sum_s(torch.randn(num_elements))

    def sum_s(self, gradient: Tensor) -> float:
        """Let the hook sum a gradient; returns the seconds that it took."""
        for parameter in self._matrices:
            parameter.grad = None
        self._model(gradient).backward()
        return self._ended_s - self._began_s

    def _timed(self, state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> Future[Tensor]:
        dist.all_reduce(torch.zeros(1))  # nobody's time counts the others' way here
        self._began_s = time.perf_counter()

        def note_end(future: Future[Tensor]) -> Tensor:
            self._ended_s = time.perf_counter()
            return future.value()

        return powerSGD_hook.powerSGD_hook(state, bucket).then(note_end)


class _Product(nn.Module):
    """Its gradient is its input."""

    def __init__(self, matrices: nn.ParameterList):
        super().__init__()
        self.matrices = matrices

    def forward(self, gradient: Tensor) -> Tensor:
        parts = gradient.view(-1, SIDE, SIDE)
        products = [(own * part).sum() for own, part in zip(self.matrices, parts, strict=True)]
        return torch.stack(products).sum()
