"""Who may be relying on what lies in the store: nothing is removed from it meanwhile.

What ends a permit is the end of its checkpoint or of a later one, another question of the same
Keeper for the same, since it has forgotten the one before, or the loss of its node; never time,
since a store may be slow. A Keeper whose permit is void begins again: voiding one is always safe.

Process: coordinator.  Thread: its event loop.
"""

from collections.abc import Callable

from trainflow.epochs import Version


class UploadPermits:
    """The permits of one coordinator; those of an earlier one are void."""

    def __init__(self) -> None:
        self._num_granted = 0
        self._held: dict[str, tuple[str, Version]] = {}  # by permit: node, what it uploads

    def __bool__(self) -> bool:
        return bool(self._held)

    def grant(self, node_id: str, version: Version, incarnation: int) -> str:
        """Permit a node's Keeper to upload a share of a version."""
        self._void(lambda node, held: (node, held) == (node_id, version))
        self._num_granted += 1
        permit = f"{incarnation}.{self._num_granted}"
        self._held[permit] = node_id, version
        return permit

    def is_valid(self, permit: str) -> bool:
        """Whether it was granted here and has not ended."""
        return permit in self._held

    def num_for(self, version: Version) -> int:
        """How many Keepers upload shares of a version, or have and wait for its end."""
        return sum(held == version for _, held in self._held.values())

    def void_of(self, node_id: str) -> None:
        """End a node's permits."""
        self._void(lambda node, _: node == node_id)

    def void_all(self) -> None:
        """End every permit: what lies in the store is about to change."""
        self._held = {}

    def void_up_to(self, step: int) -> None:
        """End the permits for versions up to a step: their checkpoints are made or given up."""
        self._void(lambda _, version: version.step <= step)

    def _void(self, is_over: Callable[[str, Version], bool]) -> None:
        self._held = {permit: held for permit, held in self._held.items() if not is_over(*held)}
