"""Random numbers as a function of what is computed, never of who computes it.

A microbatch draws the same numbers on whichever rank, in whichever epoch, at whichever try.
"""

import random
import struct
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
import xxhash


def derive_seed(seed: int, step: int, microbatch: int) -> int:
    """Mix a run's seed, a step and a global microbatch index into 63 bits."""
    return xxhash.xxh3_64_intdigest(struct.pack("<qqq", seed, step, microbatch)) >> 1


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), Python's `random` and NumPy's global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def isolated_randomness(seed: int) -> Generator[None]:
    """Seed everything inside, and leave the generators outside as they were."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        seed_everything(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
