"""Server-sent events as text, by the HTML standard, section 9.2. Pure."""

import json
from collections.abc import Mapping
from typing import Any

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b": alive\n\n"
"""A comment: keeps a connection open, and tells a client that it is."""


def frame_retry(after_s: float) -> bytes:
    """Return what tells a client after how long to come back."""
    return f"retry: {round(after_s * 1000)}\n\n".encode()


def frame_event(number: int, data: Mapping[str, Any]) -> bytes:
    """Return one event; ``number`` comes back as Last-Event-ID."""
    return f"id: {number}\ndata: {json.dumps(data)}\n\n".encode()


def frame_anew(known: int) -> bytes:
    """Return what tells a client that the events it knows, up to a number, are known no more.

    Its id has whoever comes back now begin with the first event.
    """
    return f"id: 0\nevent: anew\ndata: {json.dumps({'known': known})}\n\n".encode()


def frame_named(name: str, data: Mapping[str, Any]) -> bytes:
    """Return an event that is none of the job's, and so has no number."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
