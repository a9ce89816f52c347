"""A run in order passes; each way in which one can be out of order fails its own invariant."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainflow.coordination.chaos.fallen import FallenFault, SparesSeen
from trainflow.coordination.chaos.findings import EndState, Findings, JobFacts, RunEvidence
from trainflow.coordination.chaos.flips import Flip
from trainflow.coordination.chaos.invariants import Verdict, judge
from trainflow.coordination.chaos.used_samples import Committed, Used
from trainflow.data.order import SampleOrder

JOB = JobFacts(max_steps=4, target=2, batch=4, seed=3, order="shuffled", deterministic=True)
NUM_SAMPLES = 10
EPOCH, LATER = (1, 1), (1, 2)
STEPS = range(1, JOB.max_steps + 1)
DISTURBED = "disturbed"
FELL = FallenFault(1, "kill rank 1", "rank 1 (w1), pid 7", "w1", 3.9, 2)
NOT_DUE = FallenFault(2, "stop rank 0", due_by="time")
NOBODY = FallenFault(3, "kill spare", at_s=6.0, after_step=2)
DRAWN = FallenFault(5, "kill member", due_by="draw")
MISSED = FallenFault(4, "kill rank 0 in snapshot", due_by="place", is_missed=True)


def samples(step: int, rank: int) -> tuple[int, ...]:
    """Half of a step's samples."""
    order = SampleOrder(NUM_SAMPLES, JOB.seed, JOB.order)
    indices = order.indices((step - 1) * JOB.batch, step * JOB.batch).tolist()
    return tuple(indices[2 * rank : 2 * rank + 2])


def line(step: int, **changes: Any) -> dict[str, Any]:
    digest = f"{step:016x}"
    return {"step": step, "world_size": 2, "digest": digest, "committed_at_s": step} | changes


def tell(kind: str, at_s: float, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "at_s": at_s, "text": "", "data": data}


def make_events(charged_s: float = 19.9) -> list[dict[str, Any]]:
    """Two workers and a spare are there from 0 s to 8 s, but for one that dies at 4 s."""
    workers = ["w0", "w1", "w2"]
    return [
        tell("submitted", 0.0),
        tell("launched", 1.0, workers=workers),
        tell("failure", 4.0, worker="w1", rank=1) | {"text": "lost w1 (rank 1): its actor exited"},
        tell("goodput", 8.0, seconds={"productive": charged_s - 5.0, "idle": 5.0}),
    ]


def lose(worker: str, at_s: float = 5.0) -> dict[str, Any]:
    """An event that a worker without a rank is lost."""
    text = f"lost {worker} (spare): The actor died"
    return tell("failure", at_s, worker=worker, rank=None) | {"text": text}


def make_flip(**changes: Any) -> Flip:
    return replace(Flip(1, 3, EPOCH, at_s=5.0, world_size=3), **changes)


def name_rank(**changes: Any) -> dict[str, Any]:
    data = {"step": 3, "epoch": "1.1", "ranks": [1], "no_majority": False}
    return tell("ranks_differ", 6.0, **data | changes)


def make_run(**changes: Any) -> RunEvidence:
    """A run of two ranks in which rank 1 was lost in step 3 and that came again."""
    epochs = {1: EPOCH, 2: EPOCH, 3: LATER, 4: LATER}
    used = [Used(f"w{rank}", s, epochs[s], samples(s, rank)) for s in STEPS for rank in (0, 1)]
    void = [Used(f"w{rank}", 3, EPOCH, samples(3, rank)) for rank in (0, 1)]
    run = RunEvidence(
        job_id="tiny-abcdef",
        state="succeeded",
        reason="every step is done",
        steps=[line(step) for step in STEPS],
        used=[*used, *void],
        commits=[Committed(f"w{rank}", s, epochs[s]) for s in STEPS for rank in (0, 1)],
        ends=[EndState(f"w{rank}", rank, (0, 1), "cafe") for rank in (0, 1)],
        num_samples=NUM_SAMPLES,
        events=make_events(),
    )
    return replace(run, **changes)


def make_findings(**changes: Any) -> Findings:
    undisturbed = replace(make_run(events=[]), job_id="tiny-ghijkl")
    return Findings(JOB, make_run(**changes), undisturbed, (FELL,))


def verdict(found: Findings, invariant: str) -> Verdict:
    return next(each for each in judge(found) if each.invariant == invariant)


def test_a_run_in_order_keeps_every_invariant():
    events = [*make_events(), name_rank()]
    found = make_findings(flips=[make_flip()], events=events)
    assert [each.holds for each in judge(found)] == [True] * 10


def without(items: list[Any], *places: int) -> list[Any]:
    return [each for place, each in enumerate(items) if place not in places]


CLEAN = make_run()
BROKEN: dict[str, tuple[str, Callable[[], Findings], str]] = {
    "it failed": (
        "it ends",
        lambda: make_findings(state="failed", reason="rank 1 raised"),
        "it failed: rank 1 raised",
    ),
    "no fault fell": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(NOT_DUE,)),
        "no fault fell before it was over: make the run longer, or the fault earlier",
    ),
    "a listed fault was never due": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(FELL, NOT_DUE)),
        "fault 2, stop rank 0: it was never due: make the run longer, or the fault earlier",
    ),
    "a listed fault found nobody": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(FELL, NOBODY)),
        "fault 3, kill spare: nobody was there",
    ),
    "nobody came to a fault's place": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(FELL, MISSED)),
        "fault 4, kill rank 0 in snapshot: nobody came to that place",
    ),
    "a drawn fault could not be done": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(FELL, replace(DRAWN, undone="it can't"))),
        "fault 5, kill member: it can't",
    ),
    "a fault could not be ended": (
        "its faults fall",
        lambda: replace(make_findings(), faults=(replace(FELL, undone="it can't"),)),
        "fault 1, kill rank 1: rank 1 (w1), pid 7; it can't",
    ),
    "a worker that no fault fell on": (
        "nobody dies unplanned",
        lambda: make_findings(events=[*make_events(), lose("w2")]),
        "tiny-abcdef: after step 4: lost w2 (spare): The actor died",
    ),
    "a worker of the run that nothing fell on": (
        "nobody dies unplanned",
        lambda: replace(make_findings(), undisturbed=make_run(job_id="tiny-ghijkl")),
        "tiny-ghijkl: after step 4: lost w1 (rank 1)",
    ),
    "a step in two epochs": (
        "every step is committed once",
        lambda: make_findings(commits=[*CLEAN.commits, Committed("w0", 2, LATER)]),
        "step 2 was committed in 2 epochs: (1, 1), (1, 2)",
    ),
    "a step in none": (
        "every step is committed once",
        lambda: make_findings(commits=[c for c in CLEAN.commits if c.step != 3]),
        "step 3 was committed by no rank",
    ),
    "a step too many": (
        "every step is committed once",
        lambda: make_findings(commits=[*CLEAN.commits, Committed("w0", 5, LATER)]),
        "step 5 is none of 4",
    ),
    "a step before the first": (
        "every step is committed once",
        lambda: make_findings(commits=[*CLEAN.commits, Committed("w0", 0, EPOCH)]),
        "step 0 is none of 4",
    ),
    "a step twice in the record": (
        "every step is committed once",
        lambda: make_findings(steps=[*CLEAN.steps, line(2)]),
        "step 2 is in the record 2 times",
    ),
    "steps that are in no record": (
        "every step is committed once",
        lambda: make_findings(steps=[line(1), line(4)]),
        "2 steps are not in the record, more than anybody died with: steps 2, 3, 1 of them",
    ),
    "an empty record, though a coordinator died": (
        "every step is committed once",
        lambda: make_findings(
            steps=[], events=[*make_events(), tell("coordinator_restarted", 4.0, workers=[])]
        ),
        "no step is in the record",
    ),
    "a sample left out": (
        "every sample is used once",
        lambda: make_findings(used=without([*CLEAN.used], 1)),
        f"step 1: samples {[*samples(1, 1)]} are missing, and [] too many",
    ),
    "a sample used twice": (
        "every sample is used once",
        lambda: make_findings(used=[*CLEAN.used, Used("w0", 4, LATER, samples(4, 1)[:1])]),
        f"step 4: samples [] are missing, and {[*samples(4, 1)[:1]]} too many",
    ),
    "a rank with other bits": (
        "ranks end bitwise equal",
        lambda: make_findings(ends=[CLEAN.ends[0], replace(CLEAN.ends[1], digest="beef")]),
        "ranks 0 hold cafe; ranks 1 hold beef",
    ),
    "a rank that has not come to the end": (
        "ranks end bitwise equal",
        lambda: make_findings(ends=CLEAN.ends[:1]),
        "rank 1 has not told",
    ),
    "nobody that has told, though it is done": (
        "ranks end bitwise equal",
        lambda: make_findings(ends=[]),
        "it is done, and no rank has told what it holds",
    ),
    "a flipped bit that was committed": (
        "flipped bits are kept out",
        lambda: make_findings(flips=[make_flip(epoch=LATER)]),
        "step 3 was committed in epoch (1, 2), with a bit flipped on rank 1",
    ),
    "a flipped bit whose rank is not named": (
        "flipped bits are kept out",
        lambda: make_findings(flips=[make_flip()], events=[name_rank(ranks=[0])]),
        "rank 1 was not named, on which a bit flipped in step 3",
    ),
    "gradients unlike the undisturbed run's": (
        "it ends as an undisturbed run",
        lambda: make_findings(steps=[line(1), line(2), line(3, digest="0" * 16), line(4)]),
        "they part at step 3 (trainflow bisect tiny-abcdef tiny-ghijkl has more)",
    ),
    "gradients unlike the undisturbed run's before the world was smaller": (
        "it ends as an undisturbed run",
        lambda: make_findings(
            steps=[line(1), line(2, digest="0" * 16), line(3), line(4, world_size=1)]
        ),
        "they part at step 2 (trainflow bisect tiny-abcdef tiny-ghijkl has more)",
    ),
    "a state unlike the undisturbed run's": (
        "it ends as an undisturbed run",
        lambda: make_findings(ends=[replace(each, digest="beef") for each in CLEAN.ends]),
        "the state's part 0 of 1: beef, undisturbed cafe",
    ),
    "an undisturbed run that failed, whatever the world did": (
        "it ends as an undisturbed run",
        lambda: replace(
            make_findings(steps=[line(step, world_size=1) for step in STEPS]),
            undisturbed=make_run(state="failed", reason="it raised"),
        ),
        "that one failed: it raised",
    ),
    "an undisturbed run of which nobody tells": (
        "it ends as an undisturbed run",
        lambda: replace(make_findings(), undisturbed=make_run(ends=[])),
        "no rank of that one has told what it holds",
    ),
    "no ledger, though it is done": (
        "all time has a cause",
        lambda: make_findings(events=make_events()[:-1]),
        "it is done and monitored, and told of no ledger",
    ),
    "time without a cause": (
        "all time has a cause",
        lambda: make_findings(events=make_events(charged_s=19.7)),
        "the ledger has 19.70 s, and its workers were there for 20.00 s",
    ),
    "time that is charged twice": (
        "all time has a cause",
        lambda: make_findings(events=make_events(charged_s=20.3)),
        "the ledger has 20.30 s",
    ),
    "a process left behind": (
        "nothing is left behind",
        lambda: make_findings(left=["process 7"]),
        "tiny-abcdef: process 7",
    ),
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_run_out_of_order_fails_with_evidence(way: str):
    invariant, make, evidence = BROKEN[way]
    found = verdict(make(), invariant)
    assert found.holds is False
    assert any(each.startswith(evidence) for each in found.evidence), found.evidence


def test_a_run_that_failed_before_a_fault_fell_is_not_to_be_made_longer():
    found = replace(make_findings(state="failed", reason="it raised"), faults=(NOT_DUE,))
    assert verdict(found, "it ends").evidence == ("it failed: it raised",)
    assert verdict(found, "its faults fall").evidence == ("no fault fell before it was over",)


def test_chance_may_have_a_fault_find_nobody_or_be_too_late():
    drawn = (DRAWN, replace(DRAWN, at_s=6.0))
    found = verdict(replace(make_findings(), faults=(FELL, *drawn)), "its faults fall")
    assert found.holds
    assert found.evidence == ("1 of 3 faults fell; of 1 it was never due; of 1 nobody was there",)
    assert verdict(replace(make_findings(), faults=drawn), "its faults fall").holds is False


@pytest.mark.parametrize(
    ("seen", "reduced", "told"),
    [
        (SparesSeen(2, 1, were_all=False), True, "the cluster has room for 3 of 4 workers; give"),
        (SparesSeen(2, 1, were_all=False), False, "make the run longer, as others were still"),
        (SparesSeen(2, None, were_all=False), False, "it was over before it was seen to train"),
    ],
)
@pytest.mark.parametrize("late", [DRAWN, NOT_DUE])
def test_seconds_that_never_began_to_count_are_told_with_the_reason(
    seen: SparesSeen, told: str, late: FallenFault, *, reduced: bool
):
    events = [*make_events(), *([tell("reduced", 1.0, wanted=4, slots=3)] if reduced else [])]
    for faults in ((late,), (FELL, late)):
        found = replace(make_findings(events=events), faults=faults, spares=seen)
        judged = verdict(found, "its faults fall")
        assert judged.holds is False
        assert len(judged.evidence) == (2 if faults == (late,) else 1), judged.evidence
        assert told in judged.evidence[-1]
        assert seen.most is None or "spares = 2 are warm, and at most 1 were" in judged.evidence[-1]
        assert "or the fault earlier" not in judged.evidence[0]


def test_a_step_may_be_in_no_record_for_each_loss_and_each_coordinator_that_died():
    restarted = tell("coordinator_restarted", 4.0, workers=["w0", "w1", "w2"])
    events = [*make_events(), restarted]
    found = make_findings(steps=[line(1), line(4)], events=events)
    judged = verdict(found, "every step is committed once")
    assert judged.holds
    assert judged.evidence == ("4 steps; nobody lived to report 2",)
    fewer = verdict(make_findings(steps=[line(4)], events=events), "every step is committed once")
    assert fewer.holds is False


def test_a_disk_that_was_full_excuses_what_a_coordinator_did_not_live_to_write():
    events = [tell("coordinator_restarted", 4.0, workers=["w0"])]
    found = make_findings(steps=[line(1), line(4)], events=events)
    filled = replace(FELL, kind="fill_disk", at_s=1.5)
    name = "every step is committed once"
    assert verdict(found, name).holds is False
    assert verdict(replace(found, faults=(filled,)), name).holds
    late = replace(found, faults=(replace(filled, at_s=7.0),))
    assert verdict(late, name).holds is False
    assert verdict(replace(late, skewed={"coordinator"}), name).holds


@pytest.mark.parametrize(("reduced", "num_told"), [(True, 2), (False, 1)])
def test_of_a_run_that_did_not_end_only_a_lack_of_room_is_told(num_told: int, *, reduced: bool):
    events = [*make_events(), *([tell("reduced", 1.0, wanted=4, slots=3)] if reduced else [])]
    seen = SparesSeen(2, 1, were_all=False)
    run = make_findings(events=events, state="stopped", reason="it took too long")
    judged = verdict(replace(run, faults=(NOT_DUE,), spares=seen), "its faults fall")
    assert len(judged.evidence) == num_told
    assert ("room for 3 of 4 workers" in judged.evidence[-1]) == reduced


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (None, "none of workers.spares = 2 was warm while it trained; make the run longer"),
        (0, "none of workers.spares = 2 was warm while it trained; make the run longer"),
        (1, "let it fall when one of the 1 that were is, or have more"),
    ],
)
def test_why_no_spare_was_there_is_told(most: int | None, told: str):
    seen = SparesSeen(2, most, were_all=False)
    found = verdict(replace(make_findings(), faults=(FELL, NOBODY), spares=seen), "its faults fall")
    assert found.evidence[0].startswith(f"fault 3, kill spare: nobody was there: {told}")


def test_where_no_step_was_committed_nothing_is_said_of_samples():
    found = verdict(make_findings(commits=[], steps=[]), "every sample is used once")
    assert (found.holds, found.evidence) == (None, ("no step was committed",))


def test_what_is_new_and_may_be_anybody_s_is_told_and_breaks_nothing():
    found = verdict(make_findings(strays=["/dev/shm/b", "/dev/shm/a"]), "nothing is left behind")
    assert found.holds
    assert found.evidence[0].endswith("; new, and may be anybody's: /dev/shm/a, /dev/shm/b")


def test_of_many_faults_the_first_are_shown():
    found = verdict(
        make_findings(left=[f"process {n}" for n in range(9)]), "nothing is left behind"
    )
    assert len(found.evidence) == 6
    assert found.evidence[-1] == "and 4 more"


def test_of_a_world_that_has_shrunk_those_tell_who_were_in_it_at_the_end():
    sizes = {1: 3, 2: 3, 3: 2, 4: 2}
    found = make_findings(steps=[line(step, world_size=sizes[step]) for step in STEPS])
    assert verdict(found, "ranks end bitwise equal").holds


def test_shards_are_compared_with_their_like():
    ends = [EndState(f"w{rank}", rank, (rank % 2, 2), f"d{rank % 2}") for rank in range(4)]
    steps = [line(step, world_size=4) for step in STEPS]
    alike = verdict(make_findings(ends=ends, steps=steps), "ranks end bitwise equal")
    assert alike.holds
    ends[3] = replace(ends[3], digest="other")
    unlike = verdict(make_findings(ends=ends, steps=steps), "ranks end bitwise equal")
    assert unlike.evidence == ("ranks 1 hold d1; ranks 3 hold other",)


def test_where_each_part_has_one_holder_nothing_is_said_of_their_bits():
    ends = [EndState(f"w{rank}", rank, (rank, 4), f"d{rank}") for rank in range(4)]
    steps = [line(step, world_size=4) for step in STEPS]
    alone = verdict(make_findings(ends=ends, steps=steps), "ranks end bitwise equal")
    assert (alone.holds, alone.evidence) == (
        None,
        ("each part has one holder: nothing was compared",),
    )
    silent = verdict(make_findings(ends=ends[:3], steps=steps), "ranks end bitwise equal")
    assert silent.holds is False


def test_flips_that_nobody_could_have_seen_are_told_apart_from_faults_that_found_nobody():
    fault = replace(NOBODY, due_by="draw")
    alone = replace(fault, number=4, what="flip member", kind="flip")
    late = replace(alone, number=5, at_s=None, is_missed=True)
    findings = replace(make_findings(), faults=(FELL, fault, alone, late))
    found = verdict(findings, "its faults fall")
    assert found.holds
    assert found.evidence == (
        "1 of 4 faults fell; of 1 nobody was there; of 1 nobody was there whose sums another "
        "compares; of 1 nobody came to that place whose sums another compares",
    )


def test_flips_are_told_with_how_many_were_named_and_why_others_were_not():
    flips = [
        make_flip(),
        make_flip(step=2, epoch=(1, 8), world_size=2),
        make_flip(epoch=(1, 9), at_s=6.5),
    ]
    events = [name_rank(), tell("failure", 7.0, rank=0)]
    found = verdict(make_findings(flips=flips, events=events), "flipped bits are kept out")
    assert found.holds
    assert found.evidence == (
        "3 flipped, 1 named with their rank; 1 where no majority tells on which rank; "
        "1 in steps that another failure ended before their sums were compared",
    )


def test_by_wrong_clocks_no_failure_is_too_early_to_have_ended_a_step():
    found = make_findings(flips=[make_flip()], events=[tell("failure", 1.0, rank=0)])
    assert verdict(found, "flipped bits are kept out").holds is False
    assert verdict(replace(found, skewed={"coordinator"}), "flipped bits are kept out").holds


ODD = [replace(each, digest=None, reason="it is odd") for each in CLEAN.ends]


@pytest.mark.parametrize(
    ("invariant", "disturbed", "undisturbed", "told"),
    [
        ("ranks end bitwise equal", ODD, CLEAN.ends, ["tiny-abcdef: ranks 0, 1"]),
        ("ranks end bitwise equal", [ODD[0], CLEAN.ends[1]], ODD, ["tiny-abcdef: ranks 0"]),
        ("it ends as an undisturbed run", ODD, CLEAN.ends, ["tiny-abcdef: ranks 0, 1"]),
        ("it ends as an undisturbed run", CLEAN.ends, ODD, ["tiny-ghijkl: ranks 0, 1"]),
        (
            "it ends as an undisturbed run",
            ODD,
            ODD,
            ["tiny-abcdef: ranks 0, 1", "tiny-ghijkl: ranks 0, 1"],
        ),
    ],
)
def test_of_what_was_not_hashed_nothing_is_said_but_why(
    invariant: str, disturbed: list[EndState], undisturbed: list[EndState], told: list[str]
):
    found = make_findings(ends=disturbed)
    assert found.undisturbed is not None
    found = replace(found, undisturbed=replace(found.undisturbed, ends=undisturbed))
    judged = verdict(found, invariant)
    assert judged.holds is None
    why = "could not hash what they held: it is odd"
    assert judged.evidence == tuple(f"{each} {why}" for each in told)


def test_ranks_that_did_hash_are_compared_though_another_did_not():
    steps = [line(step, world_size=3) for step in STEPS]
    odd = replace(ODD[0], rank=2)
    ends = [CLEAN.ends[0], replace(CLEAN.ends[1], digest="beef"), odd]
    found = verdict(make_findings(ends=ends, steps=steps), "ranks end bitwise equal")
    assert (found.holds, found.evidence) == (False, ("ranks 0 hold cafe; ranks 1 hold beef",))


UNTOLD: dict[str, tuple[str, Callable[[], Findings]]] = {
    "no flip": ("flipped bits are kept out", make_findings),
    "nobody told of samples": ("every sample is used once", lambda: make_findings(num_samples=0)),
    "nobody came to the end": (
        "ranks end bitwise equal",
        lambda: make_findings(ends=[], state="failed"),
    ),
    "nothing to compare with": (
        "it ends as an undisturbed run",
        lambda: replace(make_findings(), undisturbed=None),
    ),
    "no ledger of what isn't monitored": (
        "all time has a cause",
        lambda: replace(
            make_findings(events=make_events()[:-1]), job=replace(JOB, is_monitored=False)
        ),
    ),
    "no ledger of a run that failed": (
        "all time has a cause",
        lambda: make_findings(events=make_events()[:-1], state="failed"),
    ),
    "clocks that were wrong": (
        "all time has a cause",
        lambda: replace(make_findings(), skewed={"coordinator"}),
    ),
    "the world changed": (
        "it ends as an undisturbed run",
        lambda: make_findings(steps=[line(1), line(2, world_size=1), line(3), line(4)]),
    ),
    "not deterministic": (
        "it ends as an undisturbed run",
        lambda: replace(make_findings(), job=replace(JOB, deterministic=False)),
    ),
}


def test_where_the_world_changed_what_is_compared_is_told():
    found = make_findings(steps=[line(1), line(2), line(3, world_size=1), line(4)])
    (told,) = verdict(found, "it ends as an undisturbed run").evidence
    assert told.startswith("not compared from step 3 on, nor the state: the world had 1 ranks")
    assert told.endswith("the 2 steps before are the same")


@pytest.mark.parametrize("way", UNTOLD)
def test_what_can_not_be_told_is_not_held_against_a_run(way: str):
    invariant, make = UNTOLD[way]
    found = verdict(make(), invariant)
    assert found.holds is None
    assert found.evidence
