"""A random order of any number of samples that is computed, never stored.

Pure: plain arrays in and out, the same on every machine. Runs wherever an order is needed.
"""

import hashlib
from math import isqrt

import numpy as np
from numpy.typing import NDArray

_NUM_ROUNDS = 8


class Permutation:
    """A keyed bijection on ``[0, size)``, in constant memory and for any ``size`` from 1 up.

    A number is written as ``left * right_size + right`` with ``left_size * right_size >= size``,
    both near the square root of ``size``. Each round adds a keyed hash of one half to the other
    half, modulo that half's size; as a round can be subtracted again, the whole is a bijection on
    the product. Of the product, less than ``left_size`` numbers lie beyond ``size``: one that lands
    there is sent through again until it comes back inside (cycle walking), which keeps the map a
    bijection.

    Source: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002:
    generalised Feistel construction (method 3) and cycle walking (method 2). This is for shuffling;
    its hash is the 64-bit finaliser of SplitMix (Steele, Lea and Flood, OOPSLA 2014), not a secure
    one.
    """

    def __init__(self, size: int, seed: int, pass_index: int) -> None:
        """Choose the permutation of a pass; ``size`` must be at least 1."""
        if size < 1:
            msg = f"a permutation needs a size of at least 1, got {size}"
            raise ValueError(msg)
        self._size = size
        self._left_size = np.uint64(isqrt(size - 1) + 1)
        self._right_size = np.uint64(-(-size // int(self._left_size)))
        self._round_keys = _derive_round_keys(seed, pass_index)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions, int64 of any shape in ``[0, size)``, to distinct numbers in ``[0, size)``.

        Raises:
            IndexError: a position is out of range.
        """
        return self._walk(positions, forward=True)

    def inverse(self, permuted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map each permuted number back to its position; raises as the call does."""
        return self._walk(permuted, forward=False)

    def _walk(self, values: NDArray[np.int64], *, forward: bool) -> NDArray[np.int64]:
        """Apply the Feistel map until every value is inside ``[0, size)``."""
        if values.size and (values.min() < 0 or values.max() >= self._size):
            msg = f"positions must be in [0, {self._size}), got {values.min()} to {values.max()}"
            raise IndexError(msg)
        step = self._encrypt if forward else self._decrypt
        walked = step(values.astype(np.uint64))
        while (outside := walked >= self._size).any():
            walked[outside] = step(walked[outside])
        return walked.astype(np.int64)

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values // self._right_size, values % self._right_size
        for index, key in enumerate(self._round_keys):
            if index % 2 == 0:
                left = (left + _mix(right + key) % self._left_size) % self._left_size
            else:
                right = (right + _mix(left + key) % self._right_size) % self._right_size
        return left * self._right_size + right

    def _decrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values // self._right_size, values % self._right_size
        for index, key in reversed(list(enumerate(self._round_keys))):
            if index % 2 == 0:
                shift = _mix(right + key) % self._left_size
                left = (left + self._left_size - shift) % self._left_size
            else:
                shift = _mix(left + key) % self._right_size
                right = (right + self._right_size - shift) % self._right_size
        return left * self._right_size + right


def _derive_round_keys(seed: int, pass_index: int) -> NDArray[np.uint64]:
    """Hash (seed, pass) to one 64-bit key a round; any integers do, and no two pairs share keys."""
    text = f"trainflow permutation, seed {seed}, pass {pass_index}"
    digest = hashlib.blake2b(text.encode(), digest_size=8 * _NUM_ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit values (SplitMix64 finaliser); array arithmetic wraps modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
