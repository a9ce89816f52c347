"""Tell from a process's stacks where its training stands. Pure.

The text is that of `faulthandler`: for each thread a heading with its number, then its frames, the
innermost first.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_HEADING = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)\b.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/")
_PARTS_SHOWN = 3
_GROUPS_SHOWN = 4


@dataclass(frozen=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self._shown_file}:{self.line})"

    @property
    def without_line(self) -> str:
        """The same, for code that turns in a loop while it waits: ranks stand together there."""
        return f"{self.function} ({self._shown_file})"

    @property
    def _shown_file(self) -> PurePath:
        return PurePath(*PurePath(self.file).parts[-_PARTS_SHOWN:])


@dataclass(frozen=True)
class OwnCode:
    """What is neither Python's nor a library's.

    Attributes:
        trainflow: folder that this package lies in.
        job: first name of the training function's module, which may be installed as libraries are.
    """

    trainflow: str
    job: str

    def is_trainflow(self, frame: Frame) -> bool:
        """Whether it is of this package."""
        return frame.file.startswith(f"{self.trainflow}/")

    def is_users(self, frame: Frame) -> bool:
        """Whether it is of the job."""
        if self.is_trainflow(frame):
            return False
        installed = re.search(rf"-packages/{re.escape(self.job)}(?:/|\.py$)", frame.file)
        return bool(installed) or not _LIBRARY.search(frame.file)


def parse_stacks(text: str) -> dict[int, tuple[Frame, ...]]:
    """Return the frames of each thread, the innermost first, by the thread's number."""
    pieces = _HEADING.split(text)
    return {
        int(number, 16): tuple(
            Frame(file, int(line), function) for file, line, function in _FRAME.findall(frames)
        )
        for number, frames in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def find_place(frames: Sequence[Frame], own: OwnCode) -> str:
    """Say where a thread stands: the innermost of the job's frames, and of this package's within.

    Empty if there is neither. A line is told of the job's code alone.
    """
    inner = next((f for f in frames if own.is_trainflow(f) or own.is_users(f)), None)
    users = next((f for f in frames if own.is_users(f)), None)
    if inner is None:
        return ""
    if users is None:
        return inner.without_line
    return str(users) if users == inner else f"{users} > {inner.without_line}"


def describe_places(places: Mapping[str, str], ranks: Mapping[str, int]) -> str:
    """Return where workers stand, in words: those together that stand in one place.

    Args:
        places: what is to be said of each worker, the most telling first.
        ranks: of those that have one.
    """
    groups: dict[str, list[str]] = {}
    for worker_id, place in places.items():
        groups.setdefault(place, []).append(worker_id)
    shown = [f"{_name(ids, ranks)}: {place}" for place, ids in groups.items()]
    if len(shown) > _GROUPS_SHOWN:
        shown[_GROUPS_SHOWN:] = [f"and {len(shown) - _GROUPS_SHOWN} more places"]
    return "; ".join(shown)


def _name(worker_ids: Sequence[str], ranks: Mapping[str, int]) -> str:
    """Name workers by their ranks, as far as they have any; very many by their number."""
    numbers = sorted(ranks[each] for each in worker_ids if each in ranks)
    names = [each for each in worker_ids if each not in ranks]
    if len(numbers) > 2 * _GROUPS_SHOWN:
        names.insert(0, f"{len(numbers)} ranks from {numbers[0]} to {numbers[-1]}")
    elif numbers:
        listed = ", ".join(map(str, numbers))
        names.insert(0, f"{'rank' if len(numbers) == 1 else 'ranks'} {listed}")
    return ", ".join(names)
