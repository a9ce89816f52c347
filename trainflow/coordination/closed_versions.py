"""Which states need no checkpoint any more.

A step is done twice where a run had to go back, or where nobody that lives had heard of its commit.
What an earlier epoch has beyond the step that a later one began after is of a history that no
longer counts: it is no checkpoint, and says nothing about that of the same step in the one that
does.

Process: coordinator.  Pure.
"""

from trainflow.epochs import EpochId, Version


class ClosedVersions:
    """What is made, given up, or of no account.

    Attributes:
        step: the newest whose checkpoint is made; with it, those before it are over.
    """

    def __init__(self, step: int = 0):
        self.step = step
        self._left_out: set[Version] = set()  # of steps that are not closed otherwise
        # Where epochs began: the epoch, and the step that it began after.
        self._beginnings: list[tuple[EpochId, int]] = []

    def __contains__(self, version: Version) -> bool:
        return (
            version.step <= self.step or version in self._left_out or not self.is_counted(version)
        )

    def is_counted(self, version: Version) -> bool:
        """Whether it is of the history that the run has gone on from."""
        return not any(
            version.epoch < epoch and version.step > step for epoch, step in self._beginnings
        )

    def is_left_out(self, step: int) -> bool:
        """Whether a checkpoint of this step won't be made."""
        return any(version.step == step for version in self._left_out)

    def close(self, step: int) -> None:
        """The checkpoint of a step is made, and with it those before it are over."""
        self.step = max(self.step, step)
        self._left_out = {version for version in self._left_out if version.step > self.step}

    def leave_out(self, version: Version) -> None:
        """One won't be made; those before it may."""
        self._left_out.add(version)

    def reopen_after(self, step: int) -> None:
        """The checkpoints after ``step`` may be made, again."""
        self.step = min(self.step, step)

    def begin(self, epoch: EpochId, step: int, stored_step: int) -> None:
        """An epoch begins.

        Args:
            epoch: its id.
            step: what it begins after.
            stored_step: of the newest checkpoint, which stays one.
        """
        self.reopen_after(max(step, stored_step))
        # What a later beginning rules out needs no earlier one.
        self._beginnings = [each for each in self._beginnings if each[1] < step]
        self._beginnings.append((epoch, step))
        self._left_out = {version for version in self._left_out if self.is_counted(version)}
