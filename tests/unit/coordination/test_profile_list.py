"""What became of profiles, from events alone."""

import json
from typing import Any

from trainflow.coordination.profile_list import Profile, TraceState, list_profiles

MEMBERS = ["slot0-1.0", "slot1-1.1"]
WRITTEN = {
    "file": "profiles/1/rank-0.json.gz",
    "num_bytes": 7,
    "first_step": 8,
    "last_step": 9,
    "cut_short": "",
}


def event(kind: str, at_s: float = 5.0, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "at_s": at_s, "data": data}


def asked(number: int = 1) -> dict[str, Any]:
    ranks = [{"rank": rank, "worker": worker} for rank, worker in enumerate(MEMBERS)]
    return event("profile", number=number, num_steps=2, first_step=8, ranks=ranks)


def only(*events: dict[str, Any]) -> Profile:
    (profile,) = list_profiles(events)
    return profile


def states(profile: Profile) -> list[TraceState]:
    return [trace.state for trace in profile.traces]


def test_a_profile_is_over_once_every_rank_has_told():
    begun = only(asked())
    assert (begun.number, begun.asked_at_s, begun.num_steps, begun.first_step) == (1, 5.0, 2, 8)
    assert [(each.rank, each.worker_id) for each in begun.traces] == [*enumerate(MEMBERS)]
    assert not begun.is_over
    half = only(asked(), event("profile_trace", number=1, rank=0, **WRITTEN))
    assert states(half) == [TraceState.WRITTEN, TraceState.AWAITED]
    assert not half.is_over
    failed = event("profile_failed", number=1, rank=1, reason="it raised")
    whole = only(asked(), event("profile_trace", number=1, rank=0, **WRITTEN), failed)
    assert whole.is_over
    written, lost = whole.traces
    assert (written.file, written.num_bytes) == ("profiles/1/rank-0.json.gz", 7)
    assert (written.first_step, written.last_step, written.trouble) == (8, 9, "")
    assert (lost.state, lost.trouble) == (TraceState.FAILED, "it raised")


def test_a_member_that_stays_is_awaited_and_one_that_is_gone_is_not():
    profile = only(asked(), event("epoch", members=[MEMBERS[1], "slot2-1.2"]))
    assert states(profile) == [TraceState.FAILED, TraceState.AWAITED]
    assert profile.traces[0].trouble == "its worker is no member any more"


def test_what_comes_late_counts_all_the_same():
    late = event("profile_trace", number=1, rank=0, **WRITTEN | {"cut_short": "the epoch ended"})
    profile = only(asked(), event("epoch", members=[]), late)
    assert states(profile) == [TraceState.WRITTEN, TraceState.FAILED]
    assert profile.traces[0].trouble == "the epoch ended"


def test_nothing_is_awaited_of_a_run_that_has_ended_or_begins_anew():
    for kind in ("attempt", "failed", "stopped", "succeeded"):
        assert only(asked(), event(kind)).is_over, kind
    assert not only(event("attempt"), asked()).is_over


def test_an_end_changes_nothing_of_what_was_over():
    failed = [event("profile_failed", number=1, rank=rank, reason="why") for rank in (0, 1)]
    profile = only(asked(), *failed, event("succeeded"))
    assert {trace.trouble for trace in profile.traces} == {"why"}


def test_each_profile_is_told_by_its_own_ranks():
    other = event("profile_trace", number=2, rank=0, **WRITTEN)
    first, second = list_profiles([asked(1), asked(2), other, event("launched", workers=[])])
    assert states(first) == [TraceState.AWAITED] * 2
    assert states(second) == [TraceState.WRITTEN, TraceState.AWAITED]


def test_of_one_that_is_not_known_nothing_is_told():
    assert list_profiles([event("profile_trace", number=1, rank=0, **WRITTEN)]) == []


def test_it_travels_as_json():
    profile = only(asked(), event("profile_trace", number=1, rank=0, **WRITTEN))
    described = json.loads(json.dumps(profile.describe()))
    assert described["traces"][1]["state"] == "awaited"
    assert described["is_over"] is False
    assert Profile.parse(described) == profile
