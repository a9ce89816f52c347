"""The residuals that one node's workers have left in shared memory.

Process: keeper.  Threads: any.  Blocks: never.
"""

from pathlib import Path

from trainflow.checkpointing.residual_file import SUFFIX, LeftPart, PartId, find_part, read_part
from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError


class HeldResiduals:
    """A folder of residual files."""

    def __init__(self, folder: Path):
        self._folder = folder

    def find(self, version: Version) -> list[PartId]:
        """Return the parts that are here and go with a state."""
        return [left.part for left in self._all() if left.part.version == version]

    def read(self, part: PartId) -> memoryview:
        """Map a part's bytes.

        Raises:
            StateError: it isn't here.
        """
        for left in self._all():
            if left.part == part:
                return read_part(left)
        raise StateError(f"got no residuals of {part} in this node's memory, expected them")

    def tidy(self, committed_in: EpochId | None) -> None:
        """Remove what dead workers have left, once a later epoch than theirs has committed.

        Args:
            committed_in: the newest that has; None: nothing is known.
        """
        if committed_in is None:
            return
        for path in self._folder.glob(f"*{SUFFIX}"):
            owner = path.name.removesuffix(SUFFIX).rpartition(".")[0]
            if (path.parent / f"{owner}.stamp").exists():
                continue
            left = find_part(path)
            if left is None or left.epoch < committed_in:
                path.unlink(missing_ok=True)

    def _all(self) -> list[LeftPart]:
        found = [find_part(path) for path in sorted(self._folder.glob(f"*{SUFFIX}"))]
        return [left for left in found if left is not None]
