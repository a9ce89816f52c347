"""Who may be relying on what lies in the store: nothing is removed from it meanwhile.

What ends a permit is the end of its checkpoint or of a later one, another question of the same
Keeper for the same share, since it has forgotten the one before, or the loss of its node; never
time, since a store may be slow. A Keeper whose permit is void begins again: voiding one is always
safe.

Process: coordinator.  Thread: its event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trainflow.epochs import Version


@dataclass(frozen=True)
class Upload:
    """What a permit is for.

    Attributes:
        node_id: of the Keeper.
        version: of the state.
        share_index: which share of it; a Keeper may have several of sharded state.
    """

    node_id: str
    version: Version
    share_index: int


class UploadPermits:
    """The permits of one coordinator; those of an earlier one are void."""

    def __init__(self) -> None:
        self._num_granted = 0
        self._held: dict[str, Upload] = {}  # by permit
        self._reported: set[str] = set()
        self._known_nodes: set[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._held)

    def grant(self, upload: Upload, incarnation: int) -> str:
        """Permit a node's Keeper to upload a share of a version."""
        self._void(lambda held: held == upload)
        self._num_granted += 1
        permit = f"{incarnation}.{self._num_granted}"
        self._held[permit] = upload
        return permit

    def is_valid(self, permit: str) -> bool:
        """Whether it was granted here and has not ended."""
        return permit in self._held

    def note_reported(self, permit: str) -> None:
        """What it was granted for is in the store: it outlives its node."""
        self._reported.add(permit)

    @property
    def versions(self) -> set[Version]:
        """Of what permits are held."""
        return {held.version for held in self._held.values()}

    def num_uploading(self, version: Version) -> int:
        """How many Keepers are uploading a share of a version."""
        return sum(
            held.version == version
            for permit, held in self._held.items()
            if permit not in self._reported
        )

    def num_up_to(self, step: int) -> int:
        """How many permits are held for versions up to a step."""
        return sum(held.version.step <= step for held in self._held.values())

    def may_hold(self, node_id: str) -> bool:
        """Whether a node is known, so that its loss would be heard of."""
        return self._known_nodes is None or node_id in self._known_nodes

    def keep_to(self, node_ids: set[str]) -> None:
        """Take the nodes that are known; the permits of all others end."""
        self._known_nodes = node_ids
        for node_id in {held.node_id for held in self._held.values()} - node_ids:
            self.void_of(node_id)

    def void_of(self, node_id: str) -> None:
        """End the permits under which a node is uploading."""
        reported = {permit: self._held[permit] for permit in self._reported & self._held.keys()}
        self._void(lambda held: held.node_id == node_id)
        self._held |= reported
        self._reported = set(reported)

    def void_if(self, is_over: Callable[[Version], bool]) -> None:
        """End the permits for versions that are made, or won't be."""
        self._void(lambda held: is_over(held.version))

    def void_all(self) -> None:
        """End every permit: what lies in the store is about to change."""
        self._held = {}

    def _void(self, is_over: Callable[[Upload], bool]) -> None:
        self._held = {permit: held for permit, held in self._held.items() if not is_over(held)}
