"""Which steps a run's record lacks, and whether that many may have been lost on their way. Pure.

Rank 0 tells of a step once it is committed. It may die before it has, and so may the coordinator
that hears it: each of these deaths may take one step along. A rank's takes the last step of its
epoch, or others would have gone on and told of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainflow.coordination.chaos.epoch_bases import Base, find_bases
from trainflow.coordination.chaos.used_samples import Committed, EpochKey
from trainflow.epochs import EpochId

Line = Mapping[str, Any]

_SHOWN = 5
_ABOUT_S = 1.0  # a fault's time is that of its order; it falls a moment later


def find_missing_steps(steps: Sequence[Line], last: int) -> list[int]:
    """Return the steps from 1 to ``last`` that are not in the record."""
    recorded = {line["step"] for line in steps}
    return [step for step in range(1, last + 1) if step not in recorded]


def count_coordinator_deaths(events: Sequence[Line]) -> int:
    """Return how many coordinators have died: another one found workers, or began anew."""
    kinds = [event["kind"] for event in events]
    return kinds.count("coordinator_restarted") + max(0, kinds.count("submitted") - 1)


def tell_missing_steps(
    missing: Sequence[int],
    steps: Sequence[Line],
    events: Sequence[Line],
    commits: Sequence[Committed],
    filled_at_s: Sequence[float],
    *,
    has_wrong_clocks: bool,
) -> list[str]:
    """Say what is wrong with a record that lacks steps, of a run that is done.

    As many may be missing as ranks and coordinators have died. Where a coordinator has, so may what
    was waiting for the next one with ranks of whom nobody went on, and what was waiting for room on
    a full disk.

    Args:
        missing: steps that are not in the record.
        steps: lines of its ``metrics.jsonl``.
        events: lines of its ``events.jsonl``.
        commits: steps that ranks have committed.
        filled_at_s: CLOCK_REALTIME of each time that the record's disk was filled.
        has_wrong_clocks: times tell nothing.
    """
    if missing and not steps:
        return ["no step is in the record"]
    num_coordinators = count_coordinator_deaths(events)
    num_ranks = sum(_is_loss_of_rank(event) for event in events)
    unheard = list(missing)
    if num_coordinators:
        waited = _find_waiting(missing, steps, events, commits)
        is_untimed = has_wrong_clocks and bool(filled_at_s)
        unheard = [
            step
            for step in missing
            if step not in waited and not (is_untimed or _is_on_full_disk(step, steps, filled_at_s))
        ]
    last = _find_last((*commits, *find_bases(events)))
    num_within = sum(step not in last for step in unheard)
    if len(unheard) <= num_ranks + num_coordinators and num_within <= num_coordinators:
        return []
    named = ", ".join(map(str, unheard[:_SHOWN])) + (", …" if len(unheard) > _SHOWN else "")
    return [
        f"{len(unheard)} steps are not in the record, more than anybody died with: steps {named}, "
        f"{num_within} of them not the last of their epoch, with {num_ranks} ranks and "
        f"{num_coordinators} coordinators that died"
    ]


def _find_last(commits: Iterable[Committed | Base]) -> set[int]:
    """Return the steps after which an epoch committed none."""
    last: dict[EpochKey, int] = {}
    for each in commits:
        last[each.epoch] = max(each.step, last.get(each.epoch, 0))
    return set(last.values())


def _is_loss_of_rank(event: Line) -> bool:
    """Whether an event tells of the loss of who had a rank; a spare commits nothing."""
    return event["kind"] == "failure" and event["data"].get("rank") is not None


def _find_waiting(
    missing: Sequence[int],
    steps: Sequence[Line],
    events: Sequence[Line],
    commits: Sequence[Committed],
) -> set[int]:
    """Return the steps that come last in their epoch, and that nobody who did them went on from."""
    recorded: dict[str, int] = {}
    for line in steps:
        epoch = line.get("epoch", "")
        recorded[epoch] = max(line["step"], recorded.get(epoch, 0))
    members = {each["data"]["epoch"]: each["data"] for each in events if each["kind"] == "epoch"}
    order = list(members)
    found: set[int] = set()
    for step in missing:
        done_by = [each for each in commits if each.step == step]
        names = {_name(each.epoch) for each in done_by}
        if len(names) != 1 or not names <= members.keys():
            continue
        (name,) = names
        after = order[order.index(name) + 1 :]
        went_on = set(members[after[0]]["members"]) if after else {each.process for each in done_by}
        is_last = recorded.get(name, 0) < step
        if is_last and not went_on.intersection(each.process for each in done_by):
            found.add(step)
    return found


def _name(epoch: EpochKey) -> str:
    return str(EpochId(*epoch))


def _is_on_full_disk(step: int, steps: Sequence[Line], filled_at_s: Sequence[float]) -> bool:
    """Whether the disk was filled between the steps in the record that are around this one."""
    before_s = [line["committed_at_s"] for line in steps if line["step"] < step]
    after_s = [line["committed_at_s"] for line in steps if line["step"] > step]
    begin_s, end_s = max(before_s, default=0.0), min(after_s, default=float("inf"))
    return any(begin_s - _ABOUT_S <= at_s <= end_s for at_s in filled_at_s)
