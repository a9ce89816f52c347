"""Ask a service again and again, whatever becomes of it, and say for how long it was silent.

Process: the harness.  Thread: one an address.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from trainflow.clock import SYSTEM_CLOCK

_EVERY_S = 0.05
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Look:
    """One request.

    Attributes:
        asked_s: CLOCK_REALTIME.
        took_s: until there was an answer, or none was to come.
        is_good: the answer was.
        answer: what was told, as JSON; None of one that is not good, or is no JSON.
    """

    asked_s: float
    took_s: float
    is_good: bool
    answer: Any = None

    @property
    def told_s(self) -> float:
        """CLOCK_REALTIME when that was known."""
        return self.asked_s + self.took_s


@dataclass(frozen=True)
class Silence:
    """How an address has answered around a death.

    Attributes:
        longest_s: from one good answer to the next, at most; infinity if none came any more.
        num_failed: requests that were not answered well.
        num_asked: requests in all.
    """

    longest_s: float
    num_failed: int
    num_asked: int


def measure_silence(looks: Sequence[Look], killed_s: float) -> Silence:
    """Return for how long nobody was answered since something was killed. Pure.

    Args:
        looks: from before that on, in their order.
        killed_s: CLOCK_REALTIME when it was.
    """
    good_s = [look.told_s for look in looks if look.is_good]
    before = max((each for each in good_s if each < killed_s), default=killed_s)
    after = [each for each in good_s if each >= killed_s]
    since = [look for look in looks if look.told_s >= killed_s]
    gaps = [late - early for early, late in zip([before, *after], after, strict=False)]
    is_answered_last = bool(since) and since[-1].is_good
    return Silence(
        longest_s=max(gaps) if gaps and is_answered_last else float("inf"),
        num_failed=sum(not look.is_good for look in since),
        num_asked=len(since),
    )


@dataclass
class Prober:
    """Asks addresses, each some twenty times a second while it can; a context manager.

    Attributes:
        urls: what is asked, by name.
        looks: what came of it, by name.
    """

    urls: Mapping[str, str]
    looks: dict[str, list[Look]] = field(default_factory=dict[str, list[Look]])

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=each, daemon=True) for each in self.urls.items()
        ]

    def __enter__(self) -> Self:
        self.looks = {name: [] for name in self.urls}
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str, url: str) -> None:
        with httpx.Client(timeout=_TIMEOUT_S) as client:
            while not self._end.wait(_EVERY_S):
                self.looks[name].append(look_at(client, url))


def look_at(client: httpx.Client, url: str) -> Look:
    """Ask once."""
    asked_s, begun_s = SYSTEM_CLOCK.unix_s(), SYSTEM_CLOCK.monotonic_s()
    try:
        answer = client.get(url)
        is_good = answer.is_success
        is_json = is_good and "json" in answer.headers.get("content-type", "")
        told: Any = answer.json() if is_json else None
    except httpx.HTTPError:
        is_good, told = False, None
    return Look(asked_s, SYSTEM_CLOCK.monotonic_s() - begun_s, is_good, told)
