"""What became of a run's profiles, from its events. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from trainflow.computation.profile_order import ProfileFailed, ProfileTrace
from trainflow.coordination.run_state import RunState

ASKED, WRITTEN, FAILED = "profile", "profile_trace", "profile_failed"
_ENDS = frozenset(str(state) for state in RunState if state.is_terminal)
KINDS = frozenset({ASKED, WRITTEN, FAILED, "epoch", "attempt"}) | _ENDS
"""Kinds of events that say anything of profiles."""


class TraceState(StrEnum):
    """How far a rank's trace is."""

    AWAITED = "awaited"
    WRITTEN = "written"
    FAILED = "failed"


@dataclass(frozen=True)
class Trace:
    """What one rank was to record.

    Attributes:
        rank: that it had.
        worker_id: of the worker.
        state: how far it is.
        file: with the trace, in the run's folder; empty before it is written.
        num_bytes: of the file.
        first_step: the first one in it; 0 before it is written.
        last_step: the last one of which it has anything.
        trouble: why there is none, or why it isn't as many whole steps as were asked for.
    """

    rank: int
    worker_id: str
    state: TraceState = TraceState.AWAITED
    file: str = ""
    num_bytes: int = 0
    first_step: int = 0
    last_step: int = 0
    trouble: str = ""


@dataclass(frozen=True)
class Profile:
    """One that was asked for.

    Attributes:
        number: from 1, in its run.
        asked_at_s: CLOCK_REALTIME when.
        num_steps: that are recorded.
        first_step: of them.
        traces: of each rank.
    """

    number: int
    asked_at_s: float
    num_steps: int
    first_step: int
    traces: tuple[Trace, ...]

    @property
    def is_over(self) -> bool:
        """Whether nothing is awaited any more."""
        return all(trace.state is not TraceState.AWAITED for trace in self.traces)

    def describe(self) -> dict[str, Any]:
        """Return it as JSON, of which `parse` makes the same profile."""
        return asdict(self) | {"is_over": self.is_over}

    @classmethod
    def parse(cls, described: Mapping[str, Any]) -> "Profile":
        """Make a profile of what `describe` returned."""
        traces = tuple(map(_parse_trace, described["traces"]))
        number, first_step = described["number"], described["first_step"]
        return cls(number, described["asked_at_s"], described["num_steps"], first_step, traces)


def _parse_trace(described: Mapping[str, Any]) -> Trace:
    values: dict[str, Any] = {**described, "state": TraceState(described["state"])}
    return Trace(**values)


def list_profiles(events: Iterable[Mapping[str, Any]]) -> list[Profile]:
    """Return a run's profiles, the oldest first.

    A rank that is no member of a later epoch, and one of a run that has ended, has nothing more to
    tell; what comes from it all the same counts.

    Args:
        events: of the run, in their order: those of `KINDS` at least.
    """
    profiles: dict[int, Profile] = {}
    for event in events:
        kind, data = event["kind"], event["data"]
        if kind == ASKED:
            traces = tuple(Trace(each["rank"], each["worker"]) for each in data["ranks"])
            number, steps = data["number"], data["num_steps"]
            asked = Profile(number, event["at_s"], steps, data["first_step"], traces)
            profiles[number] = asked
        elif kind in {WRITTEN, FAILED} and data["number"] in profiles:
            profiles[data["number"]] = _note(profiles[data["number"]], kind, data)
        elif kind == "epoch":
            members = frozenset(data.get("members", ()))
            trouble = "its worker is no member any more"
            profiles = {n: _give_up(each, trouble, members) for n, each in profiles.items()}
        elif kind == "attempt" or kind in _ENDS:
            trouble = "the run ended before it was told of"
            profiles = {n: _give_up(each, trouble) for n, each in profiles.items()}
    return list(profiles.values())


def describe_outcome(outcome: ProfileTrace | ProfileFailed) -> tuple[str, str]:
    """Return the kind and the text of the event that tells what became of a rank's trace."""
    what = f"profile {outcome.number}, rank {outcome.rank}"
    if isinstance(outcome, ProfileFailed):
        return FAILED, f"{what}: {outcome.reason}"
    steps = f"steps {outcome.first_step} to {outcome.last_step}"
    cut_short = f", cut short: {outcome.cut_short}" if outcome.cut_short else ""
    return WRITTEN, f"{what}: {steps} are in {outcome.file}{cut_short}"


def _note(profile: Profile, kind: str, data: Mapping[str, Any]) -> Profile:
    """Return a profile after what one of its ranks has told."""

    def note(trace: Trace) -> Trace:
        if trace.rank != data["rank"]:
            return trace
        if kind == FAILED:
            return replace(trace, state=TraceState.FAILED, trouble=data["reason"])
        return replace(
            trace,
            state=TraceState.WRITTEN,
            file=data["file"],
            num_bytes=data["num_bytes"],
            first_step=data["first_step"],
            last_step=data["last_step"],
            trouble=data["cut_short"],
        )

    return replace(profile, traces=tuple(map(note, profile.traces)))


def _give_up(profile: Profile, trouble: str, but: frozenset[str] = frozenset()) -> Profile:
    """Return a profile of which nothing more is awaited, but from some workers."""
    given_up = {"state": TraceState.FAILED, "trouble": trouble}
    traces = tuple(
        replace(each, **given_up)
        if each.state is TraceState.AWAITED and each.worker_id not in but
        else each
        for each in profile.traces
    )
    return replace(profile, traces=traces)
