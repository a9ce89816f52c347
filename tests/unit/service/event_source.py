"""Read server-sent events as the HTML standard says (section 9.2.6), for tests."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerEvent:
    name: str
    id: str | None
    data: str


def parse_events(body: bytes) -> list[ServerEvent]:
    """Return the whole events in a body; one that is cut off at its end is none."""
    found: list[ServerEvent] = []
    name, last_id, data = "message", None, list[str]()
    for line in re.split(r"\r\n|\n|\r", body.decode()):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append(ServerEvent(name, last_id, "\n".join(data)))
            name, last_id, data = "message", None, []
        elif field == "event":
            name = value
        elif field == "id":
            last_id = value
        elif field == "data":
            data.append(value)
    return found
