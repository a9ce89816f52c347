"""Tell kinds of failures apart by what events say of them. Pure.

An event's text is for a person, and names a worker, a step, a number of seconds: too many values
for a label. These are few.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any


class FailureCause(StrEnum):
    """Why a worker or an epoch was lost.

    Attributes:
        DIED: the process is gone.
        SILENT: its node was not heard within its lease.
        HUNG: it made no progress, or all waited for one another.
        RAISED: the job's own code did, on a worker without a rank.
        CUT_OFF: its node and another could not reach each other.
        WRONG_BITS: it computed other bits than the others, or some rank did that nobody can name.
        COLLECTIVE: a collective failed, and nobody had died.
        STATELESS: nobody held a state to go on from.
        UNSEEN: it was lost while there was no coordinator.
        PREEMPTED: its node was to go.
        OTHER: anything else.
    """

    DIED = "died"
    SILENT = "silent"
    HUNG = "hung"
    RAISED = "raised"
    CUT_OFF = "cut_off"
    WRONG_BITS = "wrong_bits"
    COLLECTIVE = "collective"
    STATELESS = "stateless"
    UNSEEN = "unseen"
    PREEMPTED = "preempted"
    OTHER = "other"


# What texts say, beside what it means; the first that is found counts.
_SAID: tuple[tuple[str, FailureCause], ...] = (
    ("it raised:", FailureCause.RAISED),
    ("hung: ", FailureCause.HUNG),
    ("every member waits for another", FailureCause.HUNG),
    ("gradients differ on ranks", FailureCause.WRONG_BITS),
    ("has parked, and no epoch was being formed", FailureCause.COLLECTIVE),
    ("has parked, as a collective failed", FailureCause.COLLECTIVE),
    ("a collective failed on", FailureCause.COLLECTIVE),
    ("not been heard within its lease", FailureCause.SILENT),
    ("can't reach each other", FailureCause.CUT_OFF),
    ("its gradients are wrong", FailureCause.WRONG_BITS),
    ("it holds no state", FailureCause.STATELESS),
    ("when a new coordinator looked for it", FailureCause.UNSEEN),
    ("it did not answer the new coordinator", FailureCause.UNSEEN),
    ("while there was no coordinator", FailureCause.UNSEEN),
    ("its training was over while the run was not", FailureCause.UNSEEN),
    ("its actor", FailureCause.DIED),
    ("its presence", FailureCause.DIED),
    ("The actor", FailureCause.DIED),
    ("ActorDied", FailureCause.DIED),
    ("ActorUnavailable", FailureCause.DIED),
)

_NOTHING_EXPLAINS_AFTER = {"epoch", "submitted"}


def name_cause(text: str, data: Mapping[str, Any]) -> FailureCause:
    """Return why something was lost.

    Args:
        text: of an event of kind ``failure``, or one of the ``causes`` of a ``recovered``.
        data: of that event; empty of the latter.
    """
    if data.get("preempted", False):
        return FailureCause.PREEMPTED
    said = (cause for words, cause in _SAID if words in text)
    return next(said, FailureCause.OTHER)


class FailureCount:
    """Which failures count, each once, as events tell of them.

    That of an epoch is kept back until the next epoch: if a member's loss comes meanwhile it
    explains it, and is the one that counts. `coordination.loss_history` judges alike.
    """

    def __init__(self) -> None:
        self._kept_back: FailureCause | None = None

    def take(self, event: Mapping[str, Any]) -> list[FailureCause]:
        """Return what counts with the next event, by cause."""
        if event["kind"] in _NOTHING_EXPLAINS_AFTER:
            return list(self.release())
        if event["kind"] != "failure":
            return []
        data, cause = event["data"], name_cause(event["text"], event["data"])
        if "worker" not in data:
            counted, self._kept_back = list(self.release()), cause
            return counted
        if data.get("rank") is not None:
            self._kept_back = None
        return [cause]

    def release(self) -> Iterator[FailureCause]:
        """Yield what is kept back, if anything is: nothing explains it any more."""
        if self._kept_back is not None:
            yield self._kept_back
        self._kept_back = None
