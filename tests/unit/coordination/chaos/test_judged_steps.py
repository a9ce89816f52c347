"""Which steps are judged, and by what: also of a step that nobody told of."""

from typing import Any

from tests.unit.coordination.chaos.test_invariants import (
    CLEAN,
    EPOCH,
    LATER,
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
