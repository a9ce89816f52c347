"""Say in one line why a worker is gone, by what Ray tells or a traceback shows: plain values.

Of a process that died Ray tells how it left, what it noticed of that, and then a paragraph of what
may be behind any death; of a constructor that raised, the traceback. An event has the line, the
worker's log the rest (`last_words`).
"""

import re
from dataclasses import dataclass
from itertools import dropwhile

from ray.exceptions import RayActorError, RayError

_MOST_CHARACTERS = 300
_FRAME = re.compile(
    r'^\s*(?:\|\s*)?File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<where>.+))?$'
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXIT = re.compile(
    r"Worker exit type: (?P<kind>\S+)\s+Worker exit detail: (?P<detail>.*)", re.DOTALL
)
_BOILERPLATE = re.compile(r"There are some potential root causes|Some common causes include")
_OF_THE_ACTOR = re.compile(r"^\t(class_name|actor_id|pid|name|namespace|ip): ")


@dataclass(frozen=True)
class DeathCause:
    """Why a worker is gone.

    Attributes:
        line: for an event.
        words: all that was told, without colours.
    """

    line: str
    words: str


def explain_death(error: RayError) -> DeathCause:
    """Return why a process is gone, by the error with which a call of its actor ended."""
    words = _without_colours(str(error))
    if isinstance(error, RayActorError):
        return DeathCause(f"its actor died: {_shorten(_find_reason(words))}", words)
    return DeathCause(_shorten(f"{type(error).__name__}: {words}"), words)


def explain_trace(trace: str) -> str:
    """Return the exception of a traceback, and where it was raised, in one line.

    Of a chain of exceptions it is the last one.
    """
    lines = _without_colours(trace).rstrip().splitlines()
    frames = [(number, match) for number, line in enumerate(lines) if (match := _FRAME.match(line))]
    if not frames:
        return _shorten(lines[-1] if lines else "")
    number, frame = frames[-1]
    after = list(dropwhile(_is_source, lines[number + 1 :]))
    what = _shorten(" ".join(after or lines[-1:]))
    where = "" if frame["where"] is None else f", in {frame['where']}"
    return f"{what} ({frame['file']}:{frame['line']}{where})"


def _is_source(line: str) -> bool:
    """Whether a line of a traceback shows what a frame was at."""
    return not line or line[0].isspace()


def _without_colours(text: str) -> str:
    return _COLOUR.sub("", text)


def _find_reason(words: str) -> str:
    """Return what tells this death from others: no names, which the event has, nor guesses."""
    _, _, told = words.partition("\n")
    lines = (told or words).splitlines()
    reason = " ".join(line for line in lines if not _OF_THE_ACTOR.match(line))
    found = _EXIT.search(reason)
    if found is not None:
        reason = f"{found['kind']}: {found['detail']}"
    return _BOILERPLATE.split(reason)[0]


def _shorten(text: str) -> str:
    """Put a text into one line, of so many characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
