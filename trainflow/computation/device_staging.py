"""Bring tensors of a GPU to memory of the host beside what the GPU computes.

They are copied on a stream of their own to pinned memory, where the device writes without the
processor's help, and from there by a thread to where they belong. What forward may change is copied
before the next kernel of training; the rest while forward and backward run: only the optimizer
changes it, and it waits (`before_overwrite`).

Process: every rank that snapshots, if its model is on a GPU.  Threads: training begins and waits;
one of its own finishes.  Blocks: `begin` and `before_overwrite` don't, `wait` does.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transfer:
    """A tensor, and where its bytes go.

    Attributes:
        tensor: on a GPU, contiguous.
        view: memory of the host, of its size.
        is_lasting: nothing but `before_overwrite`'s caller changes it.
    """

    tensor: Tensor
    view: memoryview
    is_lasting: bool


class DeviceStaging:
    """One GPU's stream for it, and pinned memory that is kept for the next time."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._copied = torch.cuda.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, transfers: Sequence[Transfer], on_done: Callable[[], None]) -> None:
        """Start copying; waits first for what was begun before.

        Args:
            transfers: what, and where to.
            on_done: called by a thread of its own once all bytes are in place.

        Raises:
            RuntimeError: the host has no such memory to pin, or the copy before has failed.
        """
        self.wait()
        self._reserve(sum(each.tensor.nbytes for each in transfers))
        training = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(training)
        landed: list[tuple[Transfer, Tensor]] = []
        start = 0
        with torch.cuda.stream(self._stream):
            for each in sorted(transfers, key=lambda each: each.is_lasting):
                if each.is_lasting and (not landed or not landed[-1][0].is_lasting):
                    training.wait_event(self._stream.record_event())
                stop = start + each.tensor.nbytes
                landing = self._pinned[start:stop]
                landing.copy_(each.tensor.view(-1).view(torch.uint8), non_blocking=True)
                landed.append((each, landing))
                start = stop
            self._copied.record(self._stream)
        if landed and not landed[-1][0].is_lasting:
            training.wait_event(self._copied)
        self._thread = threading.Thread(
            target=self._finish, args=(landed, on_done), name="staging", daemon=True
        )
        self._thread.start()

    def before_overwrite(self) -> None:
        """Have what training computes from here on wait until everything has been copied."""
        torch.cuda.current_stream(self._device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait until all bytes are in place.

        Raises:
            RuntimeError: the copy has failed; what was to follow it has not been done.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"a copy of the state failed: {error}") from error

    def _reserve(self, num_bytes: int) -> None:
        if self._pinned.nbytes < num_bytes:
            self._pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def _finish(
        self, landed: Sequence[tuple[Transfer, Tensor]], on_done: Callable[[], None]
    ) -> None:
        # Holds the tensors until then, so that nothing else comes to lie where they are.
        try:
            self._copied.synchronize()
            for each, landing in landed:
                if landing.nbytes:
                    torch.frombuffer(each.view, dtype=torch.uint8).copy_(landing)
            on_done()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error
