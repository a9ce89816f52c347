"""From events and kills to figures: two ranks with steps of 1 s, and a third that takes over."""

from statistics import StatisticsError

import pytest

from benchmarks.peers.events import STEP, Event
from benchmarks.peers.samples import (
    Kill,
    Milestone,
    Recovery,
    RecoverySample,
    find_recovery,
    median_step_s,
    summarize,
    to_samples,
)

SURVIVOR, VICTIM, SPARE = 10, 11, 12
KILL = Kill(unix_s=3.25, pid=VICTIM, generation=1)
MILESTONES = (Milestone("seen", "error", min), Milestone("groups", "group"))


def make_step(unix_s: float, pid: int, step: int, generation: int = 1) -> Event:
    rank = 0 if pid == SURVIVOR else 1
    return Event(STEP, unix_s, pid, generation, rank, world_size=2, step=step)


def make_milestone(name: str, unix_s: float, pid: int = SURVIVOR) -> Event:
    return Event(name, unix_s, pid, generation=1, rank=0, world_size=2, step=4)


BEFORE = [make_step(float(n), pid, n) for n in (1, 2, 3) for pid in (SURVIVOR, VICTIM)]
AFTER = [make_step(5.0, SURVIVOR, 4, generation=2), make_step(5.5, SPARE, 4, generation=2)]


def make_sample(*later: Event) -> RecoverySample:
    (sample,) = to_samples([*BEFORE, *(later or AFTER)], [KILL], MILESTONES)
    return sample


def test_recovered_is_when_the_last_rank_has_finished_a_step():
    assert find_recovery([*BEFORE, *AFTER], KILL) == Recovery(5.5, 4)
    assert make_sample().recovery_s == pytest.approx(2.25)
    assert make_sample().step_s == pytest.approx(1.0)


def test_a_step_of_one_rank_alone_is_no_recovery():
    assert find_recovery([*BEFORE, AFTER[0]], KILL) is None
    with pytest.raises(ValueError, match=f"pid {VICTIM}.*not recovered from"):
        make_sample(AFTER[0])


def test_a_step_in_flight_that_ends_under_the_old_membership_is_no_recovery():
    in_flight = [make_step(3.5, SURVIVOR, 4), make_step(3.5, VICTIM, 4)]
    assert find_recovery([*BEFORE, *in_flight], KILL) is None


def test_ranks_that_do_not_count_as_members_are_not_waited_for():
    idle = Event(STEP, 4.0, 13, 2, rank=-1, world_size=2, step=4)
    assert find_recovery([idle, *AFTER], KILL) == Recovery(5.5, 4)


def test_a_world_that_shrinks_recovers_with_those_it_has():
    alone = Event(STEP, 4.0, SURVIVOR, 2, rank=0, world_size=1, step=4)
    assert find_recovery([*BEFORE, alone], KILL) == Recovery(4.0, 4)


def test_of_several_steps_the_first_one_counts():
    following = [make_step(6.0, pid, 5, generation=2) for pid in (SURVIVOR, SPARE)]
    assert find_recovery([*following, *AFTER], KILL) == Recovery(5.5, 4)


@pytest.mark.parametrize(("first_step", "num_lost"), [(4, 0), (5, 0), (3, 1), (1, 3)])
def test_steps_that_were_finished_and_came_again_are_lost(first_step: int, num_lost: int):
    later = [make_step(5.0, pid, first_step, generation=2) for pid in (SURVIVOR, SPARE)]
    assert make_sample(*later).steps_lost == num_lost


def test_a_step_that_only_the_victim_had_finished_is_lost_if_it_comes_again():
    alone = make_step(3.2, VICTIM, 4)
    assert make_sample(alone, *AFTER).steps_lost == 1


def test_the_phase_is_told_in_steps_of_the_victim():
    assert make_sample().phase_in_step_ratio == pytest.approx(0.25)


def test_phases_follow_one_another_and_sum_to_the_recovery():
    seen = [make_milestone("error", 3.5), make_milestone("error", 3.75)]
    groups = [make_milestone("group", 4.0), make_milestone("group", 4.5)]
    sample = make_sample(*seen, *groups, *AFTER)
    assert sample.phases == pytest.approx({"seen": 0.25, "groups": 1.0, "first_step": 1.0})
    assert sum(sample.phases.values()) == pytest.approx(sample.recovery_s)


def test_what_the_victim_says_or_what_came_before_ends_no_phase():
    foreign = [make_milestone("error", 3.5, VICTIM), make_milestone("error", 3.0)]
    assert make_sample(*foreign, *AFTER).phases["seen"] == 0.0


def test_a_milestone_before_its_turn_takes_no_time():
    early = [make_milestone("group", 3.5), make_milestone("error", 4.0)]
    phases = make_sample(*early, *AFTER).phases
    assert phases == pytest.approx({"seen": 0.75, "groups": 0.0, "first_step": 1.5})


def test_the_step_time_is_of_one_membership_and_never_across_processes():
    events = [*BEFORE, make_step(9.0, SURVIVOR, 4, generation=2)]
    assert median_step_s(events, 1) == pytest.approx(1.0)
    with pytest.raises(StatisticsError):
        median_step_s(events, 2)


def test_each_kill_is_a_sample_of_its_own():
    following = [make_step(6.5, pid, 5, generation=2) for pid in (SURVIVOR, SPARE)]
    again = Kill(unix_s=6.75, pid=SPARE, generation=2)
    end = [make_step(7.0, pid, 6, generation=3) for pid in (SURVIVOR, VICTIM)]
    first, second = to_samples([*BEFORE, *AFTER, *following, *end], [KILL, again], ())
    assert first.recovery_s == pytest.approx(2.25)
    assert second.recovery_s == pytest.approx(0.25)
    assert second.steps_lost == 0


def test_a_summary_has_the_medians_and_each_kill():
    first, *others = summarize("ours", [make_sample(), make_sample()]).splitlines()
    assert first.startswith("ours: medians of 2 kills: recovery 2.250 s, step 1.000 s")
    assert "beyond a step 1.250 s" in first
    assert len(others) == 2
