"""Which steps are judged, and by what: of a run that ended early, and of a step nobody told of."""

from dataclasses import replace
from typing import Any

from tests.unit.coordination.chaos.test_invariants import (
    CLEAN,
    EPOCH,
    LATER,
    line,
    make_events,
    make_findings,
    make_flip,
    samples,
    tell,
    verdict,
)
from trainflow.coordination.chaos.used_samples import Committed, Used

ONCE, USED = "every step is committed once", "every sample is used once"
FORMED = tell("epoch", 3.0, epoch="1.1", base="0@0.0")
UNTOLD = [each for each in CLEAN.commits if each.step != 2]  # of step 2, in the first epoch


def begin_later(base: str, epoch: str = "1.2") -> list[dict[str, Any]]:
    return [FORMED, *make_events(), tell("epoch", 5.0, epoch=epoch, base=base)]


def test_a_step_that_the_next_epoch_begins_after_was_committed_though_no_rank_has_told():
    found = make_findings(commits=UNTOLD, events=begin_later("2@1.1"))
    assert verdict(found, ONCE).holds
    judged = verdict(found, USED)
    assert (judged.holds, judged.evidence) == (True, ("16 samples in 4 of 4 steps",))


def test_the_samples_of_such_a_step_are_judged():
    used = [each for each in CLEAN.used if (each.step, each.process) != (2, "w1")]
    found = make_findings(commits=UNTOLD, events=begin_later("2@1.1"), used=used)
    judged = verdict(found, USED)
    assert judged.holds is False
    assert judged.evidence == (f"step 2: samples {[*samples(2, 1)]} are missing, and [] too many",)


def test_a_flip_in_such_a_step_was_committed():
    found = make_findings(
        commits=UNTOLD, events=begin_later("2@1.1"), flips=[make_flip(step=2, epoch=EPOCH)]
    )
    judged = verdict(found, "flipped bits are kept out")
    assert judged.evidence[0].startswith("step 2 was committed in epoch (1, 1), with a bit flipped")


def test_a_step_that_neither_a_rank_nor_a_base_tells_of_is_lost_and_its_samples_are_not_judged():
    for base in ("1@1.1", "3@1.1"):
        found = make_findings(commits=UNTOLD, events=begin_later(base))
        judged = verdict(found, ONCE)
        assert judged.holds is False
        assert "step 2 was committed by no rank" in judged.evidence
    told = verdict(make_findings(commits=UNTOLD), USED)
    assert told.holds is None
    assert told.evidence == (
        "12 samples in 3 of 4 steps; of 1 it isn't known which try was committed: steps 2",
    )


def test_a_step_that_a_base_proves_and_that_is_done_again_was_committed_twice():
    went_on = tell("epoch", 6.0, epoch="1.3", base="1@1.1")
    again = [Committed("w0", 2, (1, 3))]
    commits = [*UNTOLD, Committed("w0", 3, LATER), *again]
    found = make_findings(commits=commits, events=[*begin_later("2@1.1"), went_on])
    assert "step 2 was committed in 2 epochs: (1, 1), (1, 3)" in verdict(found, ONCE).evidence


def test_of_a_checkpoint_of_several_tries_the_samples_are_not_judged_and_that_is_told():
    used = [*CLEAN.used, Used("w0", 2, (1, 0), samples(2, 0))]
    found = make_findings(commits=UNTOLD, events=begin_later("2@0.0"), used=used)
    assert verdict(found, ONCE).holds
    judged = verdict(found, USED)
    assert judged.holds is None
    assert judged.evidence[0].startswith("12 samples in 3 of 4 steps; of 1 it isn't known which")
    wrong = verdict(make_findings(commits=UNTOLD, used=[*CLEAN.used, *used]), USED)
    assert wrong.holds is False
    assert wrong.evidence[-1].startswith("24 samples in 3 of 4 steps; of 1 it isn't known which")


def test_of_a_run_that_did_not_end_the_steps_are_judged_that_it_came_to():
    commits = [each for each in CLEAN.commits if each.step <= 2]
    found = make_findings(commits=commits, steps=[line(1), line(2)], state="stopped")
    assert verdict(found, "it ends").holds is False
    assert verdict(found, ONCE).evidence == ("the 2 that it came to, of 4 steps",)
    assert verdict(found, USED).evidence == ("8 samples in 2 of 4 steps",)
    assert verdict(found, ONCE).holds
    assert verdict(found, USED).holds
    done = replace(found, disturbed=replace(found.disturbed, state="succeeded"))
    assert "step 3 was committed by no rank" in verdict(done, ONCE).evidence


def test_of_a_run_that_did_not_end_a_step_that_was_left_out_is_lost():
    commits = [each for each in CLEAN.commits if each.step in {1, 3}]
    found = make_findings(commits=commits, steps=[line(1), line(3)], state="stopped")
    assert verdict(found, ONCE).evidence == ("step 2 was committed by no rank",)
    recorded = make_findings(commits=commits[:2], steps=[line(1), line(2)], state="stopped")
    assert verdict(recorded, ONCE).evidence == ("step 2 was committed by no rank",)
    silent = make_findings(commits=CLEAN.commits[:4], steps=[line(1)], state="stopped")
    assert verdict(silent, ONCE).evidence == (
        "the 2 that it came to, of 4 steps; its record lacks 1",
    )


def test_of_a_run_that_committed_nothing_no_step_is_judged():
    found = make_findings(commits=[], steps=[], state="stopped")
    for name in (ONCE, USED):
        judged = verdict(found, name)
        assert (judged.holds, judged.evidence) == (None, ("no step was committed",))
    done = make_findings(commits=[], steps=[])
    assert verdict(done, ONCE).holds is False
