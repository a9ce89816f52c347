"""Tell which worker the others wait for, from progress stamps alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainflow.epochs import EpochId, Phase


@dataclass(frozen=True)
class Progress:
    """One worker's stamp as its Keeper read it; ages are in seconds at the time of reading."""

    pid: int
    step: int
    epoch: EpochId
    phase: Phase
    progress_age_s: float
    pulse_age_s: float


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
    it computes hangs. One that waits in a collective is a victim. Code of the user's after a commit
    may take as long as it likes.
    """
    hung: dict[str, str] = {}
    for worker_id, progress in members.items():
        if progress.phase is not Phase.STARTING and progress.pulse_age_s > timeout_s:
            hung[worker_id] = (
                f"process {progress.pid} has not run for {progress.pulse_age_s:.1f} s "
                f"(step {progress.step}, {progress.phase})"
            )
        elif progress.phase.is_judged and progress.progress_age_s > timeout_s:
            hung[worker_id] = (
                f"no progress in {progress.phase} of step {progress.step} for "
                f"{progress.progress_age_s:.1f} s"
            )
    stuck = [p.phase.is_waiting and p.progress_age_s > timeout_s for p in members.values()]
    return HangVerdict(hung, deadlocked=not hung and bool(stuck) and all(stuck))


def derive_hang_timeout_s(step_times_s: list[float], configured: float | None) -> float:
    """Return the time without progress that counts as a hang.

    Args:
        step_times_s: the last steps, any order.
        configured: what the job asks for; None derives it: ten of the slowest recent steps, at
            least 10 s, and 120 s while fewer than five steps are known (first steps load and
            compile).
    """
    if configured is not None:
        return configured
    if len(step_times_s) < 5:  # noqa: PLR2004  see above
        return 120.0
    return max(10.0, 10.0 * max(step_times_s))
