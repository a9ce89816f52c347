"""Why a step is presented, and what leaves one that is void.

Process: every rank.  Thread: training.
"""

from enum import StrEnum


class StepAborted(BaseException):
    """A void try of the step. Let it pass: ``with step`` takes it, and the step comes again."""


class StepMode(StrEnum):
    """Why a step is presented."""

    LIVE = "live"
    TAIL = "tail"
    REHEARSAL = "rehearsal"
