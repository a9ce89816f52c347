"""Go on from what earlier coordinators told, as far as it can be read.

Process: coordinator.  Thread: its event loop.  Fails: never, whatever was recorded.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]


def recall(events: Iterable[Event], take: Callable[[Event], None]) -> None:
    """Have a detector take events that are past, in order.

    What can't be read, since another release has told it or it is damaged, is left out: a detector
    that doesn't know of it is worth more than none, and no coordinator may fail for it.
    """
    for event in events:
        try:
            take(event)
        except Exception:  # whatever is wrong with it
            logger.exception("an event of an earlier coordinator is left out: %s", event)
