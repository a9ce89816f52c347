"""What a chaos plan says: which faults fall on a run, and when.

Process: any.  Pure, but for `load_plan`, which reads one local file.

A plan is read as a job file is: what it doesn't know is refused, and every problem is named. What
contradicts the rest of it is told with what contradicts the job, by `fitting.require_fit`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from trainflow.config.problems import Origins, Problem, find_problems, show, summarize
from trainflow.config.section import PositiveSeconds, Section
from trainflow.config.sources import read_file
from trainflow.errors import ConfigError

FaultKind = Literal[
    "kill",
    "stop",
    "slow",
    "partition",
    "drop_node",
    "flip",
    "hang_store",
    "fill_disk",
    "skew_clock",
]
FaultTarget = Literal["member", "spare", "keeper", "coordinator"]
FaultPhase = Literal[
    "data",
    "compute",
    "communicate",
    "commit",
    "optimizer",
    "snapshot",
    "user",
    "healing",
    "restoring",
]

_MAX_SEED = 2**63 - 1
_MOST_DRAWN = 10_000
_MOST_WEIGHT = 1e6
_MOST_SKEW_S = 10 * 365 * 86_400.0
_MOST_NODES = 100
_PROCESSES = ("member", "spare", "keeper", "coordinator")
_TARGETS: dict[FaultKind, Sequence[FaultTarget]] = {
    "kill": _PROCESSES,
    "stop": _PROCESSES,
    "slow": ("member", "spare"),
    "partition": ("member", "spare"),
    "drop_node": ("member",),
    "flip": ("member",),
    "hang_store": ("member",),
    "fill_disk": ("member",),
    "skew_clock": _PROCESSES,
}
_ONLY_OF: dict[str, Sequence[FaultKind]] = {
    "rank": ("kill", "stop", "slow", "partition", "drop_node", "flip", "skew_clock"),
    "resume_after_s": ("stop",),
    "speed": ("slow",),
    "last_s": ("slow", "partition", "hang_store", "fill_disk", "skew_clock"),
    "loses": ("partition",),
    "skew_s": ("skew_clock",),
    "back_after_s": ("drop_node",),
}
_NEEDS_TO_GO_ON = {
    "keeper": "which is ended for standing still only if a worker of its node answers",
    "coordinator": "which nobody ends for standing still",
}


class FaultConfig(Section):
    """One fault: what is done, and to whom."""

    kind: FaultKind
    """What is done: kill (SIGKILL), stop (SIGSTOP), slow (stopped and continued by turns),
    partition (the network loses what goes to the process's node or comes from it),
    drop_node (every process of the member's node is killed at once, and the node's memory is lost),
    flip (of the summed gradients, a bit on this rank alone), hang_store (the S3 server with the
    checkpoints takes connections, and answers nothing), fill_disk (there is no room for the run's
    record), skew_clock (what the process reads as the time of day is wrong)."""

    target: FaultTarget = "member"
    """Whose process; of drop_node and flip a member's, of hang_store and fill_disk nobody's."""

    rank: NonNegativeInt | None = None
    """Which member; null: one that the seed draws."""

    resume_after_s: PositiveSeconds | None = None
    """Of stop: seconds after which it goes on, if it still lives; null: it never does."""

    speed: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Of slow: the share of the time in which it runs."""

    last_s: PositiveSeconds = 5.0
    """Of slow, partition, hang_store, fill_disk and skew_clock: seconds that it lasts."""

    loses: Literal["both", "sent", "received"] = "both"
    """Of partition: what the network loses, of what the node sends and what it is sent."""

    skew_s: Annotated[float, Field(ge=-_MOST_SKEW_S, le=_MOST_SKEW_S)] = 3600.0
    """Of skew_clock: seconds by which its clock is ahead; below 0: behind."""

    back_after_s: PositiveSeconds | None = 5.0
    """Of drop_node: seconds after which another node takes its place; null: none does."""

    def conflicts(self, where: str) -> list[Problem]:
        """Return what is wrong with settings of this fault that are right one by one."""
        problems = [
            Problem(
                f"{where}.{name}",
                show(getattr(self, name)),
                f"nothing with kind = {self.kind}",
                f"leave it out: it is for {' and '.join(kinds)}",
            )
            for name, kinds in _ONLY_OF.items()
            if name in self.model_fields_set and self.kind not in kinds
        ]
        if self.kind == "skew_clock" and not self.skew_s:
            expected = "seconds by which the clock is wrong"
            problems.append(Problem(f"{where}.skew_s", "0", expected, "change it"))
        if self.target not in _TARGETS[self.kind]:
            expected = f"{' or '.join(_TARGETS[self.kind])} with kind = {self.kind}"
            change = f"change {where}.target or {where}.kind"
            problems.append(Problem(f"{where}.target", show(self.target), expected, change))
        if self.rank is not None and self.target != "member":
            expected = f"null with target = {self.target}, which has no rank"
            problems.append(Problem(f"{where}.rank", str(self.rank), expected, "leave it out"))
        why = _NEEDS_TO_GO_ON.get(self.target)
        if self.kind == "stop" and why is not None and self.resume_after_s is None:
            expected = f"a number with target = {self.target}, {why}"
            problems.append(
                Problem(f"{where}.resume_after_s", "null", expected, "say when it goes on")
            )
        return problems


class DrawnFault(FaultConfig):
    """A fault that may be drawn, as often as its weight has it."""

    weight: Annotated[float, Field(gt=0, le=_MOST_WEIGHT)] = 1.0
    """How often it is drawn, in proportion to the others' weights."""


class ScheduledFault(FaultConfig):
    """A fault at a time or at a step."""

    at_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds after all workers of the run, spares too, were warm."""

    at_step: PositiveInt | None = None
    """A step: once it is committed; with ``phase``, or of flip, in it. With phase healing or
    restoring: the first time that this comes before it, or before a later step."""

    phase: FaultPhase | None = None
    """Place in the step at which the rank itself does it, of kill and stop. Two places come before
    a step: healing, where all ranks of a new world meet and those that lack the state are given it,
    and restoring, where a rank reads it from memory or storage. A Keeper is killed in restoring,
    with a part sent that a rank reads from it."""

    @property
    def is_ordered(self) -> bool:
        """Whether the rank does it by itself, at an exact place."""
        return self.phase is not None or (self.kind == "flip" and self.at_step is not None)

    def conflicts(self, where: str) -> list[Problem]:
        """Return what is wrong with settings of this fault that are right one by one."""
        problems = super().conflicts(where)
        if (self.at_s is None) == (self.at_step is None):
            got = f"at_s = {show(self.at_s)} and at_step = {show(self.at_step)}"
            problems.append(Problem(where, got, "exactly one of the two", "say when it falls"))
        if self.is_ordered and self.rank is None and self.target == "member":
            expected = "a rank, which does it by itself at that place"
            problems.append(Problem(f"{where}.rank", "null", expected, "name one"))
        return problems if self.phase is None else [*problems, *self._phase_conflicts(where)]

    def _phase_conflicts(self, where: str) -> list[Problem]:
        problems: list[Problem] = []
        if self.target == "keeper" and (self.phase, self.kind) != ("restoring", "kill"):
            expected = "restoring with target = keeper, and kind = kill"
            change = "change it, or leave the phase out"
            got = f"{show(self.phase)} with kind = {self.kind}"
            problems.append(Problem(f"{where}.phase", got, expected, change))
        elif self.target not in {"member", "keeper"}:
            expected = f"null with target = {self.target}, which goes through no phases of a step"
            change = "leave it out, or change the target"
            problems.append(Problem(f"{where}.phase", show(self.phase), expected, change))
        if self.at_step is None or self.kind not in {"kill", "stop"}:
            expected = "null without at_step, and with any kind but kill and stop"
            problems.append(
                Problem(f"{where}.phase", show(self.phase), expected, f"change {where}")
            )
        if self.resume_after_s is not None:
            expected = "null with phase"
            change = "leave it out, or give the stop a time in place of a phase"
            problems.append(
                Problem(f"{where}.resume_after_s", f"{self.resume_after_s:g}", expected, change)
            )
        return problems


class ChaosClusterConfig(Section):
    """The cluster that a campaign starts for itself, if it is given none."""

    nodes: Annotated[int, Field(gt=0, le=_MOST_NODES)] = 3
    """How many nodes there are beside the head's, each a tree of processes on this machine."""


class ChaosPlan(Section):
    """A whole plan: faults that are drawn, or listed, or both."""

    schema_version: Literal[1] = 1
    """Version of this format."""

    seed: Annotated[int, Field(ge=0, le=_MAX_SEED)] = 0
    """Source of what is drawn: the same seed, the same faults at the same times."""

    for_s: PositiveSeconds | None = None
    """Seconds in which faults are drawn, from when all workers of the run are warm."""

    every_s: PositiveSeconds | None = None
    """Seconds between two that are drawn."""

    mix: list[DrawnFault] = Field(default_factory=list[DrawnFault])
    """What is drawn from."""

    schedule: list[ScheduledFault] = Field(default_factory=list[ScheduledFault])
    """Faults at given times or steps."""

    cluster: ChaosClusterConfig = ChaosClusterConfig()
    """The cluster that a campaign starts for itself, if it is given none."""

    timeout_s: PositiveSeconds = 3600.0
    """Longest that one run may take; then it is stopped, and judged as it is."""

    @property
    def faults(self) -> list[tuple[str, FaultConfig]]:
        """All that may fall, each with the name of its place in the plan."""
        drawn = [(f"mix.{number}", each) for number, each in enumerate(self.mix)]
        listed = [(f"schedule.{number}", each) for number, each in enumerate(self.schedule)]
        return [*drawn, *listed]

    def has(self, kind: FaultKind) -> bool:
        """Whether a fault of this kind may fall."""
        return any(fault.kind == kind for _, fault in self.faults)

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with settings that are right one by one."""
        return [
            *self._time_conflicts(),
            *self._faults_after_the_end(),
            *(problem for where, each in self.faults for problem in each.conflicts(where)),
        ]

    def _faults_after_the_end(self) -> list[Problem]:
        """Return what can't fall, as the run is stopped before."""
        times = {f"schedule.{number}.at_s": each.at_s for number, each in enumerate(self.schedule)}
        expected = f"less than timeout_s = {self.timeout_s:g}, when a run is stopped"
        return [
            Problem(name, f"{at_s:g}", expected, "lower it, or raise timeout_s")
            for name, at_s in [*times.items(), ("every_s", self.every_s), ("for_s", self.for_s)]
            if at_s is not None and at_s >= self.timeout_s
        ]

    def _time_conflicts(self) -> list[Problem]:
        if not self.mix and not self.schedule:
            change = "add faults to one of the two"
            return [Problem("mix", "no fault here nor in schedule", "at least one", change)]
        times = {"for_s": self.for_s, "every_s": self.every_s}
        change = "set it, or leave mix out" if self.mix else "leave it out, or add a mix"
        expected = "a number of seconds with a mix" if self.mix else "null without a mix"
        problems = [
            Problem(name, show(value), expected, change)
            for name, value in times.items()
            if (value is None) == bool(self.mix)
        ]
        if self.for_s is None or self.every_s is None:
            return problems
        got, most = f"{self.every_s:g}", f"for_s = {self.for_s:g}"
        if self.every_s > self.for_s:
            expected = f"at most {most}, or nothing is drawn"
            problems.append(Problem("every_s", got, expected, "lower it"))
        elif self.every_s * _MOST_DRAWN < self.for_s:
            expected = f"so many seconds that at most {_MOST_DRAWN} faults are drawn in {most}"
            problems.append(Problem("every_s", got, expected, "raise it"))
        return problems


def load_plan(path: Path) -> ChaosPlan:
    """Read a plan, each of whose settings is right by itself.

    Args:
        path: a ``.yaml``, ``.yml`` or ``.toml`` file.

    Raises:
        ConfigError: with every problem of single settings, one a line, as those of a job file.
    """
    content = read_file(path)
    if isinstance(content, Problem):
        raise ConfigError(str(content))
    try:
        return ChaosPlan.model_validate(content)
    except ValidationError as error:
        origins = Origins(default=str(path))
        problems = find_problems(error, model=ChaosPlan, data=content, origins=origins)
        raise ConfigError(summarize(problems)) from error
