"""Note every few seconds what this worker takes of its machine, in its stamp.

What a device says comes from NVML, by way of torch, which needs the package ``nvidia-ml-py``; it is
asked by a thread of its own, since a driver that doesn't answer must not look like a process that
doesn't run.

Process: every worker.  Thread: usage.  Blocks: nobody else.
Fails: never; what can't be had is asked for no more.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import torch

from trainflow.computation.stamps import StampWriter
from trainflow.monitoring.usage import Usage

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
_ENDS_WITHIN_S = 1.0
_STATM = Path("/proc/self/statm")
_RESIDENT = 1  # place of the number of resident pages in there
_PERCENT = 100.0

Ask = Callable[[], float]


class UsageMeter:
    """Asks the kernel and the device of one worker."""

    def __init__(self, asks: dict[str, Ask]):
        """Begin.

        Args:
            asks: for what is known of the device, by the name that `Usage` has for it.
        """
        self._asks = asks

    @classmethod
    def of_device(cls, device: torch.device) -> "UsageMeter":
        """Return one that asks NVML, where the device is a GPU."""
        if device.type != "cuda":
            return cls({})
        return cls(
            {
                "device_bytes": lambda: torch.cuda.device_memory_used(device),
                "device_busy_ratio": lambda: torch.cuda.utilization(device) / _PERCENT,
            }
        )

    def read(self) -> Usage:
        """Return what is taken now."""
        pages = int(_STATM.read_text(encoding="ascii").split()[_RESIDENT])
        busy, used = self._ask("device_busy_ratio"), self._ask("device_bytes")
        memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        return Usage(memory_bytes, None if used is None else int(used), busy)

    def _ask(self, name: str) -> float | None:
        ask = self._asks.get(name)
        try:
            return None if ask is None else ask()
        except Exception as error:  # noqa: BLE001  NVML's are of a package that may be missing
            logger.warning(
                "%s is not told: %s: %s; `pip install 'trainflow[gpu]'` has what NVML needs",
                name,
                type(error).__name__,
                error,
            )
            del self._asks[name]
            return None


@contextlib.contextmanager
def noting_usage(
    stamps: StampWriter, meter: UsageMeter, interval_s: float = INTERVAL_S
) -> Generator[None]:
    """Have it noted inside; a device that doesn't answer is not waited for at the end."""
    closed = threading.Event()

    def note() -> None:
        while not closed.is_set():
            stamps.note_usage(meter.read())
            closed.wait(interval_s)

    thread = threading.Thread(target=note, name="usage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join(_ENDS_WITHIN_S)
