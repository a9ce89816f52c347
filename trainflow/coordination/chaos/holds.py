"""Who has something be as it is not usually, so that one fault that is over ends no other. Pure."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Hold:
    """One fault's part in it.

    Attributes:
        thing: what it has in its hands: a link, a process, a disk.
        value: how it has it be.
    """

    thing: Hashable
    value: Any


class Holds:
    """All faults that last, by what they have in their hands."""

    def __init__(self) -> None:
        self._of: defaultdict[Hashable, list[Hold]] = defaultdict(list)

    def begin(self, thing: Hashable, value: Any = None) -> Hold:  # noqa: ANN401  each fault's own
        """Take something; returns what `end` takes."""
        hold = Hold(thing, value)
        self._of[thing].append(hold)
        return hold

    def end(self, hold: Hold) -> list[Any]:
        """Let go of it.

        Returns:
            How those have it be that still hold it, the newest last; empty: it is free.
        """
        holders = self._of[hold.thing]
        if hold in holders:
            holders.remove(hold)
        return [each.value for each in holders]

    def clear(self) -> None:
        """All let go of everything."""
        self._of.clear()
