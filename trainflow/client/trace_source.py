"""Put a trace together from streams, each of which may end anywhere. Pure.

Process: a client.
"""

from collections.abc import Mapping

from trainflow.client.problems import Problem, ServiceUnavailableError
from trainflow.service.profile_documents import TRACE_BYTES

_MOST_IDLE = 3


class TraceSource:
    """One trace.

    Attributes:
        offset: number of the next byte.
    """

    def __init__(self) -> None:
        self.offset = 0
        self._total: int | None = None
        self._offset_before = 0
        self._num_idle = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._total is not None and self.offset >= self._total

    def begin(self, headers: Mapping[str, str]) -> None:
        """A stream begins."""
        told = headers.get(TRACE_BYTES, "")
        self._total = int(told) if told.isdecimal() else 0
        self._offset_before = self.offset

    def take(self, data: bytes) -> bytes:
        """Take what has come of it, and return that."""
        self.offset += len(data)
        return data

    def end(self) -> None:
        """A stream has ended.

        Raises:
            ServiceUnavailableError: neither it nor those before it have had anything to give.
        """
        self._num_idle = 0 if self.offset > self._offset_before else self._num_idle + 1
        if self._num_idle >= _MOST_IDLE and not self.is_whole:
            detail = (
                f"trace: got {self.offset} bytes of {self._total}, and no more in {_MOST_IDLE} "
                "answers, expected all; ask again"
            )
            raise ServiceUnavailableError(Problem("", 0, detail))
