"""Which tickets were used for forks, for all servers that follow one another on a node.

What a worker starts with Ray inherits the worker's ticket, also when another server is there by
then.

Process: Keeper makes the file; its servers read and write it.  Blocks: never; it is memory.
"""

import os


class UsedTickets:
    """Tickets that are in a file of memory, and what was added since."""

    def __init__(self, descriptor: int):
        """Read those that servers before this one have added.

        Args:
            descriptor: of the file, by `make_file`; owned by this object.
        """
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._used = set(os.pread(descriptor, size, 0).decode().split())

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._used

    def add(self, ticket: str) -> None:
        """Have a ticket be used from now on. Raises OSError: there is no memory for it."""
        os.pwrite(self._descriptor, f"{ticket}\n".encode(), os.fstat(self._descriptor).st_size)
        self._used.add(ticket)

    def close(self) -> None:
        """Leave the file to others."""
        os.close(self._descriptor)


def make_file() -> int:
    """Return the descriptor of a file for tickets, which is gone with the last process that has it.

    Raises:
        OSError: there are too many descriptors.
    """
    return os.memfd_create("trainflow-tickets")
