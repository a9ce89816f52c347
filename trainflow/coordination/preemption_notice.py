"""Hear of it when the provider of a machine is about to take it back.

What asks a provider is a `NoticeSource`: `NoticeFile` looks at a file, which whatever reads a
cloud's metadata can write; a job can name one of its own (`notice_plugin`).

Process: keeper.  Thread: one of its own, so that a provider that doesn't answer holds nothing up.
"""

import logging
import os
import stat
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from trainflow.clock import Clock
from trainflow.config.section import LONGEST_S

logger = logging.getLogger(__name__)

_POLL_EVERY_S = 0.5
_SILENT_AFTER_S = 60.0  # building one may import a lot
_MAX_BYTES = 200
_MAX_TROUBLE_CHARS = 500  # it goes with every heartbeat


@dataclass(frozen=True)
class PreemptionNotice:
    """The machine is to be taken back.

    Attributes:
        left_s: seconds that are left, as of now; none or less: it may go at any moment.
        trouble: why the time that was said could not be read; None: it could.
    """

    left_s: float
    trouble: str | None = None


class NoticeSource(Protocol):
    """Asks one machine's provider."""

    def poll_notice(self) -> PreemptionNotice | None:
        """Return what it says now; None: the machine stays."""
        ...


class NoticeFile:
    """A file that is there once the machine is to go.

    It holds the seconds from when it was written, or a moment as RFC 3339 has it. An empty one
    means now, and so does one that can't be understood.
    """

    def __init__(self, path: Path, clock: Clock):
        self._path = path
        self._clock = clock

    def poll_notice(self) -> PreemptionNotice | None:
        """Look at the file."""
        try:
            with open(self._path, "rb", opener=_open_at_once) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(f"{self._path}: got a pipe or a device, expected a file")
                written_at_s = found.st_mtime
                text = file.read(_MAX_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        try:
            deadline_at_s = read_deadline(text, written_at_s)
        except ValueError as error:
            left_s = written_at_s - self._clock.unix_s()
            return PreemptionNotice(left_s, f"{self._path}: {error}")
        return PreemptionNotice(deadline_at_s - self._clock.unix_s())


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_deadline(text: str, written_at_s: float) -> float:
    """Return the CLOCK_REALTIME that a notice means, which was written at ``written_at_s``.

    Raises:
        ValueError: it says something else.
    """
    if not text:
        return written_at_s
    try:
        left_s = float(text)
    except ValueError:
        moment = _read_moment(text)
        if moment is None or moment.tzinfo is None:
            raise _misread(text) from None
        return moment.timestamp()
    if not 0 <= left_s <= LONGEST_S:  # more is a moment in seconds since 1970
        raise _misread(text)
    return written_at_s + left_s


def _read_moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _misread(text: str) -> ValueError:
    return ValueError(
        f"got {text[:40]!r}, expected seconds, as 30, or a moment with its offset from UTC, as "
        "2026-01-31T12:00:00Z; write one of these, or nothing, which means now; seconds are those "
        f"that are left, at most {LONGEST_S:.0f}"
    )


class NoticePoll:
    """Asks a source again and again.

    Attributes:
        has_answered: it has said anything at all, be it that the machine stays.
    """

    def __init__(self, source: NoticeSource, clock: Clock):
        self.has_answered = False
        self._failed: str | None = None
        self._asked_at_s: float | None = None  # by CLOCK_MONOTONIC; None: it has answered
        self._said: tuple[PreemptionNotice, float] | None = None  # and when, by CLOCK_MONOTONIC
        self._source = source
        self._clock = clock

    @property
    def newest(self) -> PreemptionNotice | None:
        """What it said last, as of now; a source that fails says nothing new, and time passes."""
        if self._said is None:
            return None
        notice, said_at_s = self._said
        return replace(notice, left_s=notice.left_s - (self._clock.monotonic_s() - said_at_s))

    @property
    def trouble(self) -> str | None:
        """Why it could not be asked the last time, or that it never answers; None: it could."""
        asked_at_s = self._asked_at_s
        if asked_at_s is None or self._clock.monotonic_s() - asked_at_s <= _SILENT_AFTER_S:
            return self._failed
        return f"TimeoutError: it has been asked, and has not answered for {_SILENT_AFTER_S:g} s"

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, name="preemption", daemon=True).start()

    def poll_once(self) -> None:
        """Ask; a source may fail in whatever way."""
        self._asked_at_s = self._clock.monotonic_s()
        try:
            notice = self._source.poll_notice()
            self._said = None if notice is None else (notice, self._clock.monotonic_s())
            self.has_answered, self._failed = True, None
        except BaseException as error:
            if self._failed is None:
                logger.exception("the machine's provider can't be asked whether it stays")
            self._failed = f"{type(error).__name__}: {error}"[:_MAX_TROUBLE_CHARS]
        finally:
            self._asked_at_s = None

    def _run(self) -> None:
        while True:
            self.poll_once()
            self._clock.sleep(_POLL_EVERY_S)


def watch_file(path: str, host: str, clock: Clock) -> NoticePoll:
    """Begin to look at a machine's file.

    Args:
        path: ``{host}`` in it stands for the machine's address.
        host: that.
        clock: tells the time that is left.
    """
    poll = NoticePoll(NoticeFile(Path(path.replace("{host}", host)), clock), clock)
    poll.start()
    return poll
