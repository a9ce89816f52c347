"""Read server-sent events from a stream of bytes, by the HTML standard, section 9.2.6."""

import logging
from dataclasses import dataclass, field

from trainflow.service.record_documents import EventDocument

logger = logging.getLogger(__name__)


@dataclass
class EventSource:
    """What was read of a job's events.

    Attributes:
        last: number of the newest event; the stream is taken up after it.
        has_ended: the job has, and all its events were read.
    """

    last: int = 0
    has_ended: bool = False
    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list[str])

    def take(self, piece: bytes) -> list[EventDocument]:
        """Take the next bytes; returns the events that are whole by now, none of them twice."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = [self._take_line(line.decode("utf-8", "replace").rstrip("\r")) for line in lines]
        return [event for event in found if event is not None]

    def begin_again(self) -> None:
        """Forget the half of an event with which a connection has ended."""
        self._rest, self._name, self._data = b"", "", []

    def _take_line(self, line: str) -> EventDocument | None:
        if not line:
            return self._dispatch()
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            self._name = value
        elif key == "data":
            self._data.append(value)
        return None

    def _dispatch(self) -> EventDocument | None:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if name == "end":
            self.has_ended = True
        elif name == "anew":
            logger.warning(
                "the service has lost the events that it told up to number %d: those that it has "
                "come from the first one on",
                self.last,
            )
            self.last = 0
        if name or not data:
            return None
        event = EventDocument.model_validate_json(data)
        if event.number <= self.last:
            return None
        self.last = event.number
        return event
