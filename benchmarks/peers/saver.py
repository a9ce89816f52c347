"""What every measured way to save a checkpoint can do.

Process: every rank.  Thread: training.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

Tree = dict[str, Any]


class Saver(Protocol):
    """One system; every rank has one, and all call the same in the same order.

    Attributes:
        name: of the system; what follows a colon tells variants of one system apart.
    """

    name: str

    def save(self, tree: Tree, step: int) -> None:
        """Save; returns once training may go on."""
        ...

    def guard(self) -> AbstractContextManager[Any]:
        """Return what must be held while the state changes."""
        ...

    def wait(self, step: int) -> None:
        """Wait until the checkpoint of ``step`` is whole."""
        ...

    def remove(self, step: int) -> None:
        """Remove every checkpoint but that of ``step``; called by one rank."""
        ...

    def load(self, step: int, into: Tree) -> Tree | None:
        """Load a checkpoint, into the given tensors where the system can.

        Returns:
            What was loaded; None on a rank whose state is another's.
        """
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...
