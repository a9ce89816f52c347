"""Publish what a run looks like, in a file: to read it nobody needs to answer.

``status.json`` in the run's folder is replaced whole, at most a few times a second when something
has changed, and at least once a second as a sign of life. How old it is says ``as_of_s``. A full or
slow disk stops nothing: what could not be written is followed by the next.

Process: coordinator; whoever reads it.  Thread: the coordinator's event loop; the disk is waited
for in another.  Blocks: never, but who reads.  Fails: never; the log tells.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from trainflow.checkpointing.whole_files import PART_PREFIX
from trainflow.clock import Clock

logger = logging.getLogger(__name__)

STATUS_FILE = "status.json"
_LOOK_EVERY_S = 0.25
_SIGN_OF_LIFE_S = 1.0
_SHARE_OF_LOOP = 0.05
_LAST_WITHIN_S = 2.0
# What differs at each look although nothing has happened.
_AGES = frozenset({"as_of_s", "lag_s"})

Document = dict[str, Any]


class StatusFile:
    """The published status of one run.

    Attributes:
        path: of the file.
    """

    def __init__(self, directory: Path, look: Callable[[], Document], clock: Clock):
        """Take what returns the document to publish, as JSON; it must not block."""
        self.path = directory / STATUS_FILE
        self._look = look
        self._clock = clock
        self._closed = asyncio.Event()
        self._writing = asyncio.Lock()  # the last word must not be overtaken
        self._published: Document | None = None
        self._published_at_s = 0.0
        self._took_s = 0.0
        self._is_in_trouble = False

    async def keep(self) -> None:
        """Publish until `close` is called."""
        while not self._closed.is_set():
            await self.publish_if_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(decide_pause_s(self._took_s)):
                    await self._closed.wait()

    async def close(self) -> bool:
        """Publish what is the case now, and nothing after it; a slow disk is not waited for.

        Returns:
            Whether it was published; if not, this may be called again.
        """
        self._closed.set()
        document = self._gather()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WITHIN_S):
                return await self._publish(document)
        return False

    async def publish_if_due(self) -> None:
        """Publish, if something has changed, or nothing was published for a second."""
        begun_s = self._clock.monotonic_s()
        document = self._gather()
        lasting = without_ages(document)
        self._took_s = self._clock.monotonic_s() - begun_s
        is_silent = begun_s - self._published_at_s >= _SIGN_OF_LIFE_S
        if lasting != self._published or is_silent:
            self._published, self._published_at_s = lasting, begun_s
            await self._publish(document)

    def _gather(self) -> Document | None:
        try:
            return self._look()
        except Exception as error:  # noqa: BLE001  a run is worth more than what is told of it
            self._note_trouble(error)
            return None

    async def _publish(self, document: Document | None) -> bool:
        if document is None:
            return False
        try:
            async with self._writing:
                await asyncio.to_thread(_write, self.path, document)
        except OSError as error:
            self._published = None  # it is due again
            self._note_trouble(error)
            return False
        self._is_in_trouble = False
        return True

    def _note_trouble(self, error: Exception) -> None:
        """Tell the first failure in a row."""
        if not self._is_in_trouble:
            logger.warning("%s grows old: it can't be renewed", self.path, exc_info=error)
        self._is_in_trouble = True


def decide_pause_s(took_s: float) -> float:
    """Return how long not to look: in a run so large that looking takes long, longer.

    Args:
        took_s: that the last look kept the event loop.
    """
    return max(_LOOK_EVERY_S, took_s / _SHARE_OF_LOOP)


def without_ages(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return a JSON value without what only tells the time."""
    if isinstance(value, dict):
        return {key: without_ages(each) for key, each in value.items() if key not in _AGES}
    if isinstance(value, list):
        return [without_ages(each) for each in value]
    return value


def read_published(directory: Path) -> Document | None:
    """Return the status that was published last; None if there is none, or it is damaged."""
    try:
        status = json.loads((directory / STATUS_FILE).read_bytes())["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cast("Document", status) if isinstance(status, dict) else None


def _write(path: Path, document: Document) -> None:
    """Replace a file, unflushed: after a loss of power nobody asks what was the case before it."""
    part = path.with_name(f"{PART_PREFIX}{path.name}-{os.getpid()}")
    try:
        part.write_text(json.dumps(document))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
