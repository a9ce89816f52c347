"""Random numbers as a function of what is computed, never of who computes it.

A microbatch draws the same numbers on whichever rank, in whichever epoch, at whichever try.
"""

import random
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

Device = torch.device


def derive_seed(seed: int, step: int, microbatch: int) -> int:
    """Mix a run's seed, a step and a global microbatch index into 63 bits."""
    return xxhash.xxh3_64_intdigest(struct.pack("<qqq", seed, step, microbatch)) >> 1


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), Python's `random` and NumPy's global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@dataclass(frozen=True)
class RandomState:
    """What generators are at: those of the host, and perhaps a device's."""

    python: Any
    numpy: Any
    torch: Tensor
    gpu: tuple[Device, Tensor] | None = None

    @classmethod
    def capture(cls, device: Device | None = None) -> "RandomState":
        """Note it; also of ``device``, if that is a GPU."""
        host = random.getstate(), np.random.get_state(), torch.get_rng_state()
        if device is None or device.type != "cuda":
            return cls(*host)
        return cls(*host, (device, torch.cuda.get_rng_state(device)))

    def restore(self) -> None:
        """Have the generators go on from there."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.gpu is not None:
            device, state = self.gpu
            torch.cuda.set_rng_state(state, device)


@contextmanager
def isolated_randomness(seed: int) -> Generator[None]:
    """Seed everything inside, and leave the generators outside as they were."""
    before = RandomState.capture()
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        seed_everything(seed)
        try:
            yield
        finally:
            before.restore()
