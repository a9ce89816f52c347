"""Tell which worker the others wait for, from progress stamps alone. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainflow.coordination.timeout_budget import COPY_LIMIT_S, START_LIMIT_S
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

_FORGOTTEN_AFTER_S = 2.0


@dataclass(frozen=True)
class Progress:
    """One worker's stamp as its Keeper read it; ages are in seconds at the time of reading."""

    pid: int
    step: int
    epoch: EpochId
    phase: Phase
    progress_age_s: float
    pulse_age_s: float

    @property
    def is_warming_up(self) -> bool:
        """Whether it starts, or rehearses a step on its own."""
        rehearses = self.epoch == INITIAL_EPOCH and self.phase is not Phase.PARKED
        return self.phase is Phase.STARTING or rehearses

    @property
    def least_limit_s(self) -> float:
        """Seconds that it may stand still, whatever the timeout is."""
        if self.phase is Phase.SNAPSHOT:
            return COPY_LIMIT_S
        return START_LIMIT_S if self.is_warming_up else 0.0


@dataclass(frozen=True)
class HangVerdict:
    """What stands still.

    Attributes:
        hung: worker ids to be killed, with the evidence in words.
        deadlocked: every member waits and none computes: nobody is to blame, the epoch is.
    """

    hung: dict[str, str]
    deadlocked: bool = False


def judge_progress(members: Mapping[str, Progress], timeout_s: float) -> HangVerdict:
    """Name the members that hang.

    A worker whose process does not even pulse is stopped. One that pulses but has not moved while
    it starts, computes or copies the state out hangs. One that waits in a collective is a victim.
    Code of the user's after a commit may take as long as it likes.

    Args:
        members: their progress, by worker id; spares too.
        timeout_s: for how long one may stand still; one that warms up has `START_LIMIT_S` if that
            is more, and one that copies `COPY_LIMIT_S`.
    """
    hung: dict[str, str] = {}
    for worker_id, progress in members.items():
        limit_s = max(timeout_s, progress.least_limit_s)
        judged = progress.phase.is_judged or progress.phase in {Phase.STARTING, Phase.SNAPSHOT}
        pulse_limit_s = limit_s if progress.is_warming_up else timeout_s
        if progress.pulse_age_s > pulse_limit_s:
            hung[worker_id] = (
                f"process {progress.pid} has not run for {progress.pulse_age_s:.1f} s "
                f"(step {progress.step}, {progress.phase})"
            )
        elif judged and progress.progress_age_s > limit_s:
            hung[worker_id] = (
                f"no progress in {progress.phase} of step {progress.step} for "
                f"{progress.progress_age_s:.1f} s"
            )
    stuck = [p.phase.is_waiting and p.progress_age_s > timeout_s for p in members.values()]
    return HangVerdict(hung, deadlocked=not hung and bool(stuck) and all(stuck))


def find_forgotten(
    progress: Mapping[str, Progress], training: Collection[str], running_s: float
) -> list[str]:
    """Return the members that wait for an epoch, which nobody forms.

    Args:
        progress: by worker id.
        training: members that haven't finished.
        running_s: for how long their epoch has run: what they did before says nothing.
    """
    return [
        worker_id
        for worker_id, seen in progress.items()
        if worker_id in training
        and seen.phase is Phase.PARKED
        and _FORGOTTEN_AFTER_S < seen.progress_age_s < running_s
    ]
