"""Where on this machine the nodes of a local cluster are.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Sites(Protocol):
    """A site for each node; number 0 is the head's."""

    def address(self, number: int) -> str | None:
        """Return the address that a node has there; None: one that Ray finds."""
        ...

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return the command that runs another one there."""
        ...

    def rack(self, number: int) -> str | None:
        """Return which others fail together with it; None if that isn't known."""
        ...


@dataclass(frozen=True)
class Loopback:
    """Loopback addresses, so that drivers attach to the head, which has the machine's own.

    Attributes:
        racks: of the nodes, as far as they have any.
    """

    racks: Sequence[str] = ()

    def address(self, number: int) -> str | None:
        """Return one of its own for each node but the head."""
        return f"127.0.0.{number + 1}" if number else None

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return the command as it is."""
        del number
        return command

    def rack(self, number: int) -> str | None:
        """Return the rack that was given."""
        return self.racks[number - 1] if 0 < number <= len(self.racks) else None


@dataclass(frozen=True)
class OwnMachine:
    """A head alone, reached from this machine and from no other one."""

    def address(self, number: int) -> str:
        """Return the address for which Ray listens nowhere else (`ray_reach`)."""
        del number
        return "127.0.0.1"

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return the command as it is."""
        del number
        return command

    def rack(self, number: int) -> None:
        """Return None: there is one node."""
        del number
