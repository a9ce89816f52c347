"""How long one rank has been at a step, and for how much of that it waited for others.

Process: every rank.  Thread: training.
"""

import contextlib
import time
from collections.abc import Generator

import torch

from trainflow.communication.group import Group


class StepTimes:
    """Times of one try of a step, from where it is made; in seconds.

    Attributes:
        computed_s: until `begin_waiting`, less what it waited for collectives in between: sharded
            parameters are gathered in the middle of computing.
        exchange_s: what the exchange of commit records took.
    """

    def __init__(self, group: Group, device: torch.device):
        self._group = group
        self._device = device
        self._started_at_s = time.monotonic()
        self._waited_before_s = group.waited_s
        self._waiting_from_s = self._started_at_s
        self.computed_s = self.exchange_s = 0.0

    def begin_waiting(self) -> None:
        """Wait until the device has computed what others wait for; from there on it waits for them.

        A GPU has but been asked to. No collective is waited for: these have streams of their own.
        """
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._waiting_from_s = time.monotonic()
        waited_s = self._group.waited_s - self._waited_before_s
        self.computed_s = self._waiting_from_s - self._started_at_s - waited_s

    @contextlib.contextmanager
    def exchanging(self) -> Generator[None]:
        """Inside, commit records are exchanged."""
        started_at_s = time.monotonic()
        yield
        self.exchange_s = time.monotonic() - started_at_s

    @property
    def waiting_s(self) -> float:
        """For how long it has waited since then."""
        return time.monotonic() - self._waiting_from_s

    @property
    def waited_s(self) -> float:
        """For how long it has waited in all, also in between; once `begin_waiting` was called."""
        return self.total_s - self.computed_s

    @property
    def total_s(self) -> float:
        """For how long it has been at the step."""
        return time.monotonic() - self._started_at_s
