"""Where the time of a start goes, by phase: a worker's, and a whole run's.

Plain values in, plain values out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

_WARM = "warm"
_NUM_NAMED = 3


class StartPhase(StrEnum):
    """What the start of a worker consists of, in this order.

    Attributes:
        PLACED: Ray has a process for it.
        PROCESS: Ray has built the actor in that; without the time it stood ready before.
        IMPORTS: what trains is imported: torch, Ray Train, TrainFlow.
        TRAINER: Ray Train has called the training function's shell.
        MODULE: the job's module is imported.
        DATA: the datasets are open.
        KERNELS: of compression, loaded, or built first.
        MODEL: the training function has come to its steps, with its model on the device.
        REHEARSAL: of one step; workers that are designated for the first epoch have none.
    """

    PLACED = "placed"
    PROCESS = "process"
    IMPORTS = "imports"
    TRAINER = "trainer"
    MODULE = "module"
    DATA = "data"
    KERNELS = "kernels"
    MODEL = "model"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True)
class WorkerStart:
    """One worker's way to being warm, as far as it can tell itself.

    Attributes:
        asked_at_s: CLOCK_REALTIME of the coordinator when it asked for the worker, as it had said.
        process_age_s: for how long the worker's process had lived when the actor was built in it.
        phases_s: what each phase took from there on; one that there was none of is missing.
        warm_for_s: for how long it had been warm when it told this.
    """

    asked_at_s: float
    process_age_s: float
    phases_s: Mapping[StartPhase, float]
    warm_for_s: float

    def place(self, heard_at_s: float) -> "PlacedStart":
        """Return the whole way, by the clock of the coordinator, which has heard of it.

        Of the worker's clock only durations count, so that it may be wrong. For how long the word
        was on its way can't be told from waiting for a process, and counts as that.
        """
        warm_at_s = heard_at_s - self.warm_for_s
        before_s = max(0.0, warm_at_s - self.asked_at_s - sum(self.phases_s.values()))
        process_s = min(before_s, self.process_age_s)  # it may have stood ready before
        first = {StartPhase.PLACED: before_s - process_s, StartPhase.PROCESS: process_s}
        return PlacedStart(warm_at_s, first | dict(self.phases_s))


@dataclass(frozen=True)
class PlacedStart:
    """One worker's way from being asked for to being warm.

    Attributes:
        warm_at_s: CLOCK_REALTIME of the coordinator when it was.
        phases_s: what each phase took; one that there was none of is missing.
    """

    warm_at_s: float
    phases_s: Mapping[StartPhase, float]

    @property
    def took_s(self) -> float:
        """From being asked for to being warm."""
        return sum(self.phases_s.values())

    @property
    def asked_at_s(self) -> float:
        """CLOCK_REALTIME of the coordinator when it asked for the worker."""
        return self.warm_at_s - self.took_s


@dataclass(frozen=True)
class RunMoments:
    """When a run had come how far; all CLOCK_REALTIME of the coordinator.

    Attributes:
        submitted_at_s: its coordinator began to open it.
        launched_at_s: there was room for its workers, and Ray had answered that it has been asked.
        formed_at_s: the epoch that committed its first step had begun.
        committed_at_s: it heard that this step was committed.
    """

    submitted_at_s: float
    launched_at_s: float
    formed_at_s: float
    committed_at_s: float


@dataclass(frozen=True)
class Share:
    """What one phase took of a start.

    Attributes:
        phase: its name.
        took_s: its length, on the worker that was slowest in it.
        worker: that one; None: the phase is the coordinator's.
    """

    phase: str
    took_s: float
    worker: str | None = None


def share_out_worker(start: PlacedStart) -> list[Share]:
    """Return what each phase took of a worker's start, in their order."""
    return [
        Share(phase.value, start.phases_s[phase]) for phase in StartPhase if phase in start.phases_s
    ]


def share_out_run(moments: RunMoments, starts: Mapping[str, PlacedStart]) -> list[Share]:
    """Return what each phase took of a run's start, in their order.

    A phase of the workers is that of the slowest in it, and the slowest of the next may be another;
    ``warm`` is the whole way of the one that was warm last.

    Args:
        moments: of the run.
        starts: of those with a rank in the first step, as far as they are known, by worker id.
    """
    last = max(starts, key=lambda worker: starts[worker].warm_at_s, default=None)
    room_at_s = warm_at_s = moments.launched_at_s
    if last is not None:
        warm_at_s = starts[last].warm_at_s
        # That all have been asked for is noted only when Ray has answered for each.
        room_at_s = min(room_at_s, starts[last].asked_at_s)
    return [
        Share("room", max(0.0, room_at_s - moments.submitted_at_s)),
        *filter(None, (_find_slowest(phase, starts) for phase in StartPhase)),
        *([] if last is None else [Share(_WARM, starts[last].took_s, last)]),
        Share("forming", max(0.0, moments.formed_at_s - warm_at_s)),
        Share("first_step", max(0.0, moments.committed_at_s - moments.formed_at_s)),
    ]


def _find_slowest(phase: StartPhase, starts: Mapping[str, PlacedStart]) -> Share | None:
    took_s = {k: each.phases_s[phase] for k, each in starts.items() if phase in each.phases_s}
    if not took_s:
        return None
    worker = max(took_s, key=lambda each: took_s[each])
    return Share(phase.value, took_s[worker], worker)


def name_longest(shares: Sequence[Share]) -> str:
    """Say in words which phases took longest."""
    phases = [share for share in shares if share.phase != _WARM]
    longest = sorted(phases, key=lambda share: share.took_s, reverse=True)[:_NUM_NAMED]
    return ", ".join(
        f"{share.phase} {share.took_s:.2f} s" + (f" ({share.worker})" if share.worker else "")
        for share in longest
    )
