"""Add up how long a training thread is in each phase of a step.

Process: every rank.  Thread: training.  Pure but for its own sums: times are given.
"""

from collections.abc import Mapping

from trainflow.epochs import Phase
from trainflow.monitoring.phases import WAIT


class PhaseTimes:
    """Seconds by phase, from one `take` to the next.

    A thread that comes to stand still between epochs has abandoned what it was at: that counts for
    no step, nor does what it waits for until another epoch begins.
    """

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._since_s = 0.0
        self._sums_s: dict[str, float] = {}

    def enter(self, phase: Phase, at_s: float) -> None:
        """The thread goes from one phase to another, or on with the same.

        Args:
            phase: the one that begins.
            at_s: when, by a clock that never goes back.
        """
        self._add(at_s)
        self._phase = phase
        if phase is Phase.PARKED:
            self._sums_s = {}

    def take(self, at_s: float) -> dict[str, float]:
        """Return the seconds in each phase up to now, and begin anew; phases without any lack."""
        self._add(at_s)
        taken, self._sums_s = self._sums_s, {}
        return taken

    def _add(self, at_s: float) -> None:
        if self._phase.is_of_step:
            name = self._phase.value
            self._sums_s[name] = self._sums_s.get(name, 0.0) + at_s - self._since_s
        self._since_s = at_s


def tell_waiting_apart(phases_s: Mapping[str, float], waited_s: float) -> dict[str, float]:
    """Return the same with what of *communicate* was waiting for ranks that came later.

    A rank that waits for a collective can't tell whether others are late or the link is slow, so
    that this is no phase that it could stamp. Once all have told how long they waited, it is known:
    the one that came last waited for nobody, and the others that much longer. Waiting for nobody
    is told as well, so that there are as many times of waiting as of communicating.

    Args:
        phases_s: seconds by `Phase`.
        waited_s: by how much this rank has waited longer than the one that came last.
    """
    communicated_s = phases_s.get(Phase.COMMUNICATE.value)
    if communicated_s is None:
        return dict(phases_s)
    wait_s = min(communicated_s, max(0.0, waited_s))
    return {**phases_s, Phase.COMMUNICATE.value: communicated_s - wait_s, WAIT: wait_s}
