"""The seam between collectives and the library that carries them.

One transport serves one epoch. It is connected eagerly, never touches the rendezvous store again
once it is up, and can be aborted from any thread.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.distributed import Store


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> bool:
        """Block until it is done; raises RuntimeError if it failed or was aborted."""
        ...


class Transport(Protocol):
    """What one epoch's group of ranks can do. Tensors are contiguous and on the transport's device.

    Each method starts the operation and returns at once. All ranks issue the same collectives in
    the same order; ``send`` and ``recv`` are matched by pair and order.
    """

    def all_reduce(self, tensor: Tensor) -> Work:
        """Sum ``tensor`` over ranks, in place."""
        ...

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        """Fill ``output`` (world_size * n elements) with every rank's ``tensor`` (n), by rank."""
        ...

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        """Send the r-th of world_size equal parts of ``tensor`` to rank r; ``output`` by sender."""
        ...

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Work:
        """As `all_to_all`, in equal parts among ``ranks``, ascending; the others among themselves.

        All ranks issue it together, each with those that it exchanges with, itself among them.
        """
        ...

    def send(self, tensor: Tensor, to_rank: int) -> Work:
        """Send ``tensor`` to one rank.

        Messages, sent and received, are waited for in the order in which they began.
        """
        ...

    def recv(self, tensor: Tensor, from_rank: int) -> Work:
        """Receive into ``tensor`` from one rank."""
        ...

    def abort(self) -> None:
        """Release whatever of this process waits, soon (`Pending.wait`). Idempotent."""
        ...


class Connector(Protocol):
    """Connects a transport; the one thing that differs between gloo and NCCL at start."""

    def __call__(self, store: Store, rank: int, world_size: int) -> Transport:
        """Block until every rank is connected; raises RuntimeError or DistStoreError if not."""
        ...
