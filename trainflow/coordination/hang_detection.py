"""Tell which worker the others wait for, from progress stamps alone. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trainflow.coordination.timeout_budget import (
    COPY_LIMIT_S,
    PROFILE_LIMIT_S,
    RESTORE_LIMIT_S,
    START_LIMIT_S,
    Limit,
    longest,
)
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase
from trainflow.monitoring.usage import Usage

_FORGOTTEN_AFTER_S = 2.0
_SEEMS_SHORTER_BY_S = 0.5  # at most: a pause of its Keeper's that it didn't know of yet


@dataclass(frozen=True)
class Progress:
    """One worker's stamp as its Keeper read it; ages are in seconds at the time of reading.

    They leave out what time the Keeper itself didn't run in, as where its machine stood still.
    What the worker takes of its machine says nothing of its progress, and travels with it.
    """

    pid: int
    step: int
    epoch: EpochId
    phase: Phase
    progress_age_s: float
    pulse_age_s: float
    usage: Usage | None = None

    @property
    def stood_s(self) -> float:
        """For how long its thread, or all of its process, has stood still: the longer of both."""
        return max(self.progress_age_s, self.pulse_age_s)

    @property
    def is_warming_up(self) -> bool:
        """Whether it starts, or rehearses a step on its own."""
        rehearses = self.epoch == INITIAL_EPOCH and self.phase is not Phase.PARKED
        return self.phase is Phase.STARTING or rehearses


@dataclass(frozen=True)
class Limits:
    """For how long what may stand still, in seconds, and what each of it comes from, in words.

    Attributes:
        hang_s: a process that doesn't run, and a thread that computes, or waits.
        first_step_s: such a thread in the first step of an epoch, if that is more.
        fresh_epoch: whose first step isn't committed; None: there is none.
        wait_s: all members that wait for one another, if that is more.
        start_s: a worker that starts or rehearses, if that is more.
        start_by_worker: the same of those in whose places others have hung, by worker id.
        left_for_s: by worker id, for how long those have been out of their epoch that were asked to
            leave it: its collectives are over, so that nobody waits in them any more.
        forming: the epoch that is being formed, whose members may be in it already, and wait there
            for those that have yet to be released into it.
        basis: of ``hang_s``.
        first_step_basis: of ``first_step_s``.
        wait_basis: of ``wait_s``.
        start_basis: of ``start_s``.
    """

    hang_s: float
    first_step_s: float = 0.0
    fresh_epoch: EpochId | None = None
    wait_s: float = 0.0
    start_s: float = START_LIMIT_S
    start_by_worker: Mapping[str, Limit] = field(default_factory=dict[str, Limit])
    left_for_s: Mapping[str, float] = field(default_factory=dict[str, float])
    forming: EpochId | None = None
    basis: str = ""
    first_step_basis: str = ""
    wait_basis: str = ""
    start_basis: str = ""

    @property
    def hang(self) -> Limit:
        """What holds where no other limit is longer."""
        return Limit(self.hang_s, self.basis)

    def start(self, worker_id: str) -> Limit:
        """Return for how long a worker that starts or rehearses may stand still."""
        usual = Limit(self.start_s, self.start_basis)
        return longest(self.hang, usual, self.start_by_worker.get(worker_id, usual))

    def step(self, epoch: EpochId) -> Limit:
        """Return for how long a thread in a step of an epoch may stand still."""
        if epoch != self.fresh_epoch:
            return self.hang
        return longest(self.hang, Limit(self.first_step_s, self.first_step_basis))

    def wait(self, epoch: EpochId) -> Limit:
        """Return for how long all members may wait for one another in an epoch."""
        return longest(self.step(epoch), Limit(self.wait_s, self.wait_basis))

    def step_s(self, epoch: EpochId) -> float:
        """Return for how long a thread in a step of an epoch may stand still, in seconds."""
        return self.step(epoch).value_s


class HangKind(StrEnum):
    """In what a worker stands still.

    Attributes:
        STOPPED: its process doesn't run at all.
        START: it loads, builds its model, or rehearses.
        STEP: it computes, reads data, or runs its optimizer.
        COPY: it copies the state out.
        RESTORE: it reads the state from where it was kept.
        ABORT: it waits in an epoch that is no more.
        PROFILE: it makes a trace of what it has recorded, in which time not even its pulse beats.
    """

    STOPPED = "stopped"
    START = "start"
    STEP = "step"
    COPY = "copy"
    RESTORE = "restore"
    ABORT = "abort"
    PROFILE = "profile"


_OWN_LIMITS = {
    Phase.SNAPSHOT: (HangKind.COPY, Limit(COPY_LIMIT_S, "that of copying the state out")),
    Phase.RESTORING: (HangKind.RESTORE, Limit(RESTORE_LIMIT_S, "that of reading the state")),
    Phase.PROFILE: (HangKind.PROFILE, Limit(PROFILE_LIMIT_S, "that of making a profile")),
}
"""What a worker would hang in, in phases that take longer than a step's, and how long at least."""


@dataclass(frozen=True)
class Hang:
    """Why a worker is to be killed.

    Attributes:
        kind: in what it stands still.
        epoch: that it is in.
        seen: the evidence.
        stood_s: seconds for which it had stood still.
        limit: the one that this was more than.
    """

    kind: HangKind
    epoch: EpochId
    seen: str
    stood_s: float
    limit: Limit

    @property
    def text(self) -> str:
        """The evidence, with the limit that it is measured by."""
        return f"{self.seen} ({self.limit})"


@dataclass(frozen=True)
class HangVerdict:
    """What stands still.

    Attributes:
        hung: who is to be killed, by worker id.
        deadlocked: every member waits and none computes: nobody is to blame, the epoch is.
    """

    hung: dict[str, Hang]
    deadlocked: bool = False


def judge_progress(members: Mapping[str, Progress], limits: Limits) -> HangVerdict:
    """Name the members that hang.

    A worker whose process does not even pulse is stopped. One that pulses but has not moved while
    it starts, computes, copies the state out, reads it or makes a profile hangs. One that waits in
    a collective is a victim, unless that was ended: then its thread is stuck, and no epoch can be
    formed with it. In the epoch that is being formed it waits for who has yet to be released. Code
    of the user's after a commit may take as long as it likes.

    Where some wait and all others are parked, nobody will come whom they wait for.

    Args:
        members: their progress, by worker id; spares too.
        limits: for how long they may stand still.
    """
    # No limit is less than this one. With each heartbeat all members are looked at, a thousand too.
    late = {w: each for w, each in members.items() if each.stood_s > limits.hang_s}
    hung: dict[str, Hang] = {}
    for worker_id, progress in late.items():
        hang = _judge(worker_id, progress, limits)
        if hang is not None:
            hung[worker_id] = hang
    if not late:
        return HangVerdict({})
    parked = [each.phase is Phase.PARKED for each in members.values()]
    stuck = [_is_stuck(each, limits) for each in members.values()]
    ended = any(stuck) and all(a or b for a, b in zip(stuck, parked, strict=True))
    return HangVerdict(hung, deadlocked=ended and not hung)


def went_on(hang: Hang, progress: Progress) -> bool:
    """Return whether a worker has moved since it was judged.

    Args:
        hang: the judgement.
        progress: as it was read later.
    """
    stood_s = progress.pulse_age_s if hang.kind is HangKind.STOPPED else progress.progress_age_s
    return stood_s < hang.stood_s - _SEEMS_SHORTER_BY_S


def _judge(worker_id: str, progress: Progress, limits: Limits) -> Hang | None:
    kind, limit = _find_limit(worker_id, progress, limits)
    pulse_limit = limits.start(worker_id) if progress.is_warming_up else limits.hang
    if kind is HangKind.PROFILE:
        pulse_limit = longest(pulse_limit, limit)
    where = f"{progress.phase} of step {progress.step}"
    if progress.pulse_age_s > pulse_limit.value_s:
        seen = (
            f"process {progress.pid} has given no pulse for {progress.pulse_age_s:.1f} s "
            f"(step {progress.step}, {progress.phase})"
        )
        return Hang(HangKind.STOPPED, progress.epoch, seen, progress.pulse_age_s, pulse_limit)
    if kind is HangKind.ABORT:
        is_coming = progress.epoch == limits.forming
        left_for_s = limits.left_for_s.get(worker_id, 0.0)
        if is_coming or min(progress.progress_age_s, left_for_s) <= limit.value_s:
            return None
        seen = f"still in {where}, {left_for_s:.1f} s after epoch {progress.epoch} was given up"
        return Hang(kind, progress.epoch, seen, progress.progress_age_s, limit)
    if kind is not None and progress.progress_age_s > limit.value_s:
        seen = f"no progress in {where} for {progress.progress_age_s:.1f} s"
        return Hang(kind, progress.epoch, seen, progress.progress_age_s, limit)
    return None


def _find_limit(
    worker_id: str, progress: Progress, limits: Limits
) -> tuple[HangKind | None, Limit]:
    """Return what it would hang in, and for how long it may stand still there; None: nothing."""
    phase = progress.phase
    if phase in _OWN_LIMITS:
        kind, at_least = _OWN_LIMITS[phase]
        return kind, longest(limits.hang, at_least)
    if phase is Phase.STARTING or (phase.is_judged and progress.is_warming_up):
        return HangKind.START, limits.start(worker_id)
    if phase.is_judged:
        return HangKind.STEP, limits.step(progress.epoch)
    return (HangKind.ABORT if phase.is_waiting else None), limits.hang


def _is_stuck(progress: Progress, limits: Limits) -> bool:
    """Whether it has waited for others for too long."""
    limit_s = limits.wait(progress.epoch).value_s
    return progress.phase.is_waiting and progress.progress_age_s > limit_s


def find_waited_for(members: Mapping[str, Progress], for_s: float) -> list[str]:
    """Return the members in code that nobody judges, where all others have waited for so long.

    Args:
        members: progress of all of them, by worker id.
        for_s: how long both have to have lasted, in seconds.
    """
    elsewhere = [w for w, each in members.items() if each.phase is Phase.USER]
    others = [each for w, each in members.items() if w not in elsewhere]
    are_waiting = all(each.phase.is_waiting or each.phase is Phase.PARKED for each in others)
    lasts = all(each.progress_age_s > for_s for each in members.values())
    return elsewhere if others and are_waiting and lasts else []


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
