"""Where the time of a run's workers goes: every nanosecond of each under one cause. Pure.

What is productive is what committed steps took, less what went into reading data and copying the
state. Everything else is badput, as in Google's ml-goodput-measurement; but the unit here is the
worker's second, so that a spare that stands by costs what it costs. Times are whole nanoseconds:
what is charged adds up to the workers' lives exactly, whatever comes in which order. A time that
lies before what is charged already counts as that moment.

Members move together: one mark says up to where all of them are charged, and a step costs the same
work in a world of two and of a thousand.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from trainflow.epochs import Phase
from trainflow.monitoring.failure_causes import FailureCause

NS_PER_S = 1_000_000_000

PRODUCTIVE, START, DATA, CHECKPOINT = "productive", "start", "data", "checkpoint"
WASTED, WAITING, IDLE, RESIZE = "wasted", "waiting", "idle", "resize"

_RECOVERY = "recovery_"
_NUM_STEPS_KEPT = 1000

CAUSES: tuple[str, ...] = (
    PRODUCTIVE,
    START,
    DATA,
    CHECKPOINT,
    *(_RECOVERY + cause.value for cause in FailureCause),
    WASTED,
    WAITING,
    IDLE,
    RESIZE,
)
"""What a worker's time can go into.

productive: steps that count. start: from being asked for until warm, and reading the state that an
attempt begins with. data: waiting for samples. checkpoint: copying the state, and seeing the last
one into storage. recovery_*: from a loss to the first step after it, by what was lost, and before
it until it was found. wasted: tries of steps that were abandoned, steps that had to be done again,
and those of which nothing was applied. waiting: for room, and for workers without which training
can't go on. idle: standing by as a spare. resize: changing the world, or going back, without a
loss; with reading the state that the first step after it begins with.
"""


class Mode(StrEnum):
    """What members are at.

    Attributes:
        TRAINING: steps.
        BROKEN: something was lost, and no epoch has begun since.
        RECOVERING: one has, and no step is committed in it.
        WAITING: there are too few of them.
    """

    TRAINING = "training"
    BROKEN = "broken"
    RECOVERING = "recovering"
    WAITING = "waiting"


@dataclass
class Account:
    """A worker without a rank.

    Attributes:
        begun_ns: when it was asked for.
        charged_ns: up to when its time is charged.
        cause: what it goes into now.
    """

    begun_ns: int
    charged_ns: int
    cause: str


def find_goodput(charged_ns: Mapping[str, int]) -> float | None:
    """Return what share of the workers' time was productive; None while there was none."""
    total_ns = sum(charged_ns.values())
    return charged_ns[PRODUCTIVE] / total_ns if total_ns else None


class Ledger:
    """One run's. Times are nanoseconds of one clock, say since 1970.

    Attributes:
        charged_ns: by cause.
        last_step: the newest that counts.
    """

    def __init__(self) -> None:
        self.charged_ns = dict.fromkeys(CAUSES, 0)
        self.last_step = 0
        self._closed_ns = 0
        self._accounts: dict[str, Account] = {}
        self._members: dict[str, int] = {}  # when each was asked for
        self._mark_ns = 0
        self._mode = Mode.TRAINING
        self._broken_ns = 0  # up to when what members did then was a try of a step
        self._step_ns: int | None = None  # what the newest step took
        self._cause = FailureCause.OTHER
        # What members do before the next step of this epoch goes into; None once there was one.
        self._joining: str | None = START
        # What went into each step, newest last: a run that goes back has wasted it.
        self._steps: deque[tuple[int, int]] = deque(maxlen=_NUM_STEPS_KEPT)

    # What is known

    @property
    def mark_ns(self) -> int:
        """Up to when members are charged."""
        return self._mark_ns

    @property
    def wall_ns(self) -> int:
        """The workers' lives so far, as far as they are charged: from when to when, added up."""
        waiting = sum(each.charged_ns - each.begun_ns for each in self._accounts.values())
        training = sum(self._mark_ns - begun_ns for begun_ns in self._members.values())
        return self._closed_ns + waiting + training

    def charged_until(self, at_ns: int) -> dict[str, int]:
        """Return by cause what is charged, with what was spent since, up to a moment.

        Of members only what recovers and waits is in it. What they have tried since the newest step
        was a step or wasted, which may be heard late even if the epoch is lost. So little is taken
        back by what is heard later: of recovering the time between a step and the word of it.
        """
        charged_ns = dict(self.charged_ns)
        for account in self._accounts.values():
            charged_ns[account.cause] += max(0, at_ns - account.charged_ns)
        spent_ns = self._split(max(self._mark_ns, at_ns), WASTED)
        for cause in spent_ns.keys() - {WASTED}:
            charged_ns[cause] += len(self._members) * spent_ns[cause]
        return charged_ns

    # What happens

    def launch(self, workers: Collection[str], submitted_ns: int, at_ns: int) -> None:
        """The first workers are asked for; since the run was submitted it has waited for room."""
        for worker in workers:
            if worker not in self._accounts and worker not in self._members:
                account = Account(submitted_ns, submitted_ns, WAITING)
                self._charge_account(account, at_ns)
                account.cause = START
                self._accounts[worker] = account

    def ask(self, worker: str, at_ns: int) -> None:
        """Another worker is asked for."""
        if worker not in self._accounts and worker not in self._members:
            self._accounts[worker] = Account(at_ns, at_ns, START)

    def warm(self, worker: str, at_ns: int) -> None:
        """A worker without a rank could take one."""
        account = self._accounts.get(worker)
        if account is not None and account.cause == START:
            self._charge_account(account, at_ns)
            account.cause = IDLE

    def form(self, members: Sequence[str], base_step: int, at_ns: int) -> None:
        """An epoch has begun, after a step."""
        for worker in members:
            self.ask(worker, at_ns)  # unless it is known
        joining = [self._accounts[each] for each in members if each in self._accounts]
        begins_ns = max([at_ns, self._mark_ns, *(each.charged_ns for each in joining)])
        self._charge_members(begins_ns, RESIZE)
        if self._mode is not Mode.TRAINING:
            self._mode = Mode.RECOVERING
        elif self._joining is None:  # else no step of this attempt has been committed yet
            self._joining = RESIZE
        self._mark_ns = begins_ns
        for worker in [each for each in self._members if each not in members]:
            self._accounts[worker] = Account(self._members.pop(worker), begins_ns, IDLE)
        for worker in members:
            account = self._accounts.pop(worker, None)
            if account is not None:
                self._charge_account(account, begins_ns)
                self._members[worker] = account.begun_ns
        if base_step < self.last_step:
            self._go_back(base_step)

    def commit(
        self, step: int, at_ns: int, phases_s: Mapping[str, float], *, is_applied: bool = True
    ) -> None:
        """The members have committed a step.

        Args:
            step: its number.
            at_ns: when.
            phases_s: what one of them was at since the step before, or since it joined the epoch,
                in seconds by `STEP_PHASES`.
            is_applied: it changed the model; one that was skipped counts, but is wasted.
        """
        if self._mode is Mode.RECOVERING:
            self._charge_members(at_ns, RESIZE)
            self._mode, self._joining = Mode.TRAINING, None
        elif self._mode is not Mode.WAITING:
            self._charge_step(step, at_ns, phases_s, PRODUCTIVE if is_applied else WASTED)
        self.last_step = step

    def lose(self, worker: str | None, cause: FailureCause, at_ns: int) -> None:
        """A worker is lost, or, if None is named, the epoch."""
        account = None if worker is None else self._accounts.pop(worker, None)
        if account is not None:
            self._charge_account(account, at_ns)
            self._closed_ns += account.charged_ns - account.begun_ns
            return
        if worker is not None and worker not in self._members:
            return  # told of before
        self._break(cause, at_ns)
        if worker is not None:
            self._close_member(worker, at_ns)

    def find(self, workers: Collection[str], at_ns: int) -> None:
        """A new coordinator has found these; those without a rank that are gone nobody tells of."""
        for worker in [each for each in self._accounts if each not in workers]:
            self.lose(worker, FailureCause.UNSEEN, at_ns)

    def wait(self, at_ns: int) -> None:
        """Members wait for workers without which they can't go on."""
        if self._members:
            self._charge_members(at_ns, WASTED)
            self._mode = Mode.WAITING

    def end(self, at_ns: int, *, is_failed: bool) -> None:
        """The run is over, and with it every worker; a later attempt may go on with the ledger."""
        for account in self._accounts.values():
            self._charge_account(account, at_ns)
        self._charge_members(at_ns, WASTED if is_failed else CHECKPOINT)
        self._closed_ns = self.wall_ns
        self._accounts, self._members, self._mode = {}, {}, Mode.TRAINING
        self._joining = START

    # How it is charged

    def _charge_account(self, account: Account, at_ns: int) -> None:
        until_ns = max(account.charged_ns, at_ns)
        self.charged_ns[account.cause] += until_ns - account.charged_ns
        account.charged_ns = until_ns

    def _charge_members(self, at_ns: int, cause: str) -> None:
        """Charge members up to a moment for what they were at; for ``cause`` if they trained."""
        number, until_ns = len(self._members), max(self._mark_ns, at_ns)
        for name, amount_ns in self._split(until_ns, cause).items():
            self.charged_ns[name] += number * amount_ns
        self._mark_ns = until_ns

    def _split(self, until_ns: int, cause: str) -> dict[str, int]:
        """Return what one member's time from the mark on went into."""
        amount_ns = until_ns - self._mark_ns
        recovery = _RECOVERY + self._cause.value
        if self._mode is Mode.BROKEN:
            wasted_ns = min(amount_ns, max(0, self._broken_ns - self._mark_ns))
            return {WASTED: wasted_ns, recovery: amount_ns - wasted_ns}
        causes = {Mode.TRAINING: cause, Mode.RECOVERING: recovery, Mode.WAITING: WAITING}
        return {causes[self._mode]: amount_ns}

    def _charge_step(
        self, step: int, at_ns: int, phases_s: Mapping[str, float], result: str
    ) -> None:
        number, until_ns = len(self._members), max(self._mark_ns, at_ns)
        left_ns = self._charge_joining(until_ns - self._mark_ns, phases_s)
        self._step_ns = left_ns
        for cause, phase in ((DATA, Phase.DATA), (CHECKPOINT, Phase.SNAPSHOT)):
            part_ns = min(left_ns, round(phases_s.get(phase.value, 0.0) * NS_PER_S))
            self.charged_ns[cause] += number * part_ns
            left_ns -= part_ns
        self.charged_ns[result] += number * left_ns
        self._steps.append((step, number * left_ns if result == PRODUCTIVE else 0))
        self._mark_ns = until_ns

    def _charge_joining(self, amount_ns: int, phases_s: Mapping[str, float]) -> int:
        """Charge what of an epoch's first step came before its phases; returns what is left.

        That is reading a checkpoint, or the state of others. Of a step that doesn't tell its phases
        nothing is known to have.
        """
        cause, self._joining = self._joining, None
        if cause is None or not phases_s:
            return amount_ns
        joining_ns = max(0, amount_ns - round(sum(phases_s.values()) * NS_PER_S))
        self.charged_ns[cause] += len(self._members) * joining_ns
        return amount_ns - joining_ns

    def _break(self, cause: FailureCause, at_ns: int) -> None:
        """Something was lost; what comes on top of it has the cause of what came first.

        The try of a step that it ended took as long as the step before it; what came after that was
        waiting for the loss to be found.
        """
        if self._mode is Mode.TRAINING:
            tried_ns = at_ns if self._step_ns is None else self._mark_ns + self._step_ns
            self._mode, self._cause, self._broken_ns = Mode.BROKEN, cause, min(at_ns, tried_ns)
        elif self._mode is Mode.RECOVERING:
            self._charge_members(at_ns, RESIZE)
            self._mode, self._broken_ns = Mode.BROKEN, at_ns

    def _close_member(self, worker: str, at_ns: int) -> None:
        """Charge one member up to its loss, and leave it out from then on."""
        until_ns = max(self._mark_ns, at_ns)
        for name, amount_ns in self._split(until_ns, WASTED).items():
            self.charged_ns[name] += amount_ns
        self._closed_ns += until_ns - self._members.pop(worker)

    def _go_back(self, step: int) -> None:
        """What steps beyond this one took is wasted."""
        while self._steps and self._steps[-1][0] > step:
            _, amount_ns = self._steps.pop()
            self.charged_ns[PRODUCTIVE] -= amount_ns
            self.charged_ns[WASTED] += amount_ns
        self.last_step = step

    # As it is kept

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, of which `from_json` makes the very same ledger."""
        return {
            "charged_ns": dict(self.charged_ns),
            "last_step": self.last_step,
            "closed_ns": self._closed_ns,
            "accounts": {name: asdict(each) for name, each in self._accounts.items()},
            "members": dict(self._members),
            "mark_ns": self._mark_ns,
            "mode": self._mode.value,
            "broken_ns": self._broken_ns,
            "step_ns": self._step_ns,
            "cause": self._cause.value,
            "joining": self._joining,
            "steps": [list(each) for each in self._steps],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Ledger":
        """Make a ledger of what `to_json` returned, also after it has been JSON.

        Raises:
            ValueError: that is no such ledger.
        """
        ledger = cls()
        try:
            ledger.charged_ns = {cause: kept["charged_ns"][cause] for cause in CAUSES}
            ledger.last_step = kept["last_step"]
            ledger._closed_ns = kept["closed_ns"]
            ledger._accounts = {name: Account(**each) for name, each in kept["accounts"].items()}
            ledger._members = dict(kept["members"])
            ledger._mark_ns = kept["mark_ns"]
            ledger._mode, ledger._broken_ns = Mode(kept["mode"]), kept["broken_ns"]
            ledger._step_ns = kept.get("step_ns")  # earlier releases kept none
            ledger._cause = FailureCause(kept["cause"])
            ledger._joining = _read_joining(kept)
            ledger._steps.extend((step, amount_ns) for step, amount_ns in kept["steps"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"got no ledger: {error!r}") from error
        return ledger


def _read_joining(kept: Mapping[str, Any]) -> str | None:
    joining = kept.get("joining")  # earlier releases kept none, and kept ledgers after steps alone
    if joining not in {None, START, RESIZE}:
        raise ValueError(f"got joining={joining!r}")
    return joining
