"""What events say of a loss, as they are written, comes to one of a few causes."""

import pytest

from trainflow.coordination.hang_detection import Limits, Progress, judge_progress
from trainflow.coordination.hang_response import _DEADLOCK
from trainflow.epochs import EpochId, Phase
from trainflow.monitoring.failure_causes import FailureCause, name_cause

LOST = "lost slot1-1.1 (rank 1): "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (LOST + "its actor exited", FailureCause.DIED),
        (LOST + "The actor died unexpectedly before finishing this task.", FailureCause.DIED),
        (LOST + "ActorUnavailableError: The actor 1f is unavailable", FailureCause.DIED),
        (LOST + "its presence connection was closed", FailureCause.DIED),
        (LOST + "its presence port refused a connection (refused)", FailureCause.DIED),
        (LOST + "its node has not been heard within its lease", FailureCause.SILENT),
        (LOST + "it raised:\nRuntimeError: its actor exited", FailureCause.RAISED),
        (LOST + "nodes a and b can't reach each other", FailureCause.CUT_OFF),
        (LOST + "its gradients are wrong: step 4: rank 1", FailureCause.WRONG_BITS),
        ("gradients differ on ranks [0, 1] after they were summed", FailureCause.WRONG_BITS),
        ("a has parked, as gradients differ on ranks [1]", FailureCause.WRONG_BITS),
        (LOST + "it holds no state, and no step is committed", FailureCause.STATELESS),
        (LOST + "it was gone when a new coordinator looked for it", FailureCause.UNSEEN),
        (LOST + "it did not answer the new coordinator", FailureCause.UNSEEN),
        (LOST + "its training was over while the run was not", FailureCause.UNSEEN),
        ("a collective failed on slot0-1.0: Connection closed", FailureCause.COLLECTIVE),
        ("slot0-1.0 has parked, and no epoch was being formed", FailureCause.COLLECTIVE),
        ("slot0-1.0 has parked, as a collective failed: reset", FailureCause.COLLECTIVE),
        (_DEADLOCK, FailureCause.HUNG),
        (LOST + "struck by lightning", FailureCause.OTHER),
    ],
)
def test_a_text_is_understood(text: str, cause: FailureCause):
    assert name_cause(text, {}) is cause


@pytest.mark.parametrize("pulse_age_s", [0.0, 99.0])
def test_a_hang_is_understood_as_the_detector_words_it(pulse_age_s: float):
    progress = Progress(1, 3, EpochId(1, 1), Phase.COMPUTE, 99.0, pulse_age_s)
    (hang,) = judge_progress({"a": progress}, Limits(10.0)).hung.values()
    assert name_cause(f"{LOST}hung: {hang.text}", {}) is FailureCause.HUNG


def test_a_preemption_is_one_whatever_was_seen_of_it():
    assert name_cause(LOST + "its actor exited", {"preempted": True}) is FailureCause.PREEMPTED
    assert name_cause(LOST + "its actor exited", {"preempted": False}) is FailureCause.DIED
