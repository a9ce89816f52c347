"""Whether a run goes back for its loss, and to which checkpoint."""

import pytest

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.anomalies.rewinding import GoBack, GoOn, decide_rewind

LIMITS = AnomaliesConfig(action="rewind", max_rewinds=2)
SPIKE, RISE = AnomalyKind.LOSS_SPIKE, AnomalyKind.LOSS_RISE
STORED = (100, 200, 300)


@pytest.mark.parametrize(
    ("kind", "since_step", "step"),
    [(SPIKE, 303, 300), (SPIKE, 302, 200), (SPIKE, 1000, 300), (RISE, 429, 300), (RISE, 428, 200)],
)
def test_it_goes_back_to_the_newest_checkpoint_before_it_may_have_begun(
    kind: AnomalyKind, since_step: int, step: int
):
    assert decide_rewind({kind: since_step}, STORED, 0, LIMITS) == GoBack(step)


def test_of_several_the_first_counts():
    assert decide_rewind({SPIKE: 301, RISE: 350}, STORED, 0, LIMITS) == GoBack(200)


@pytest.mark.parametrize("kind", sorted(set(AnomalyKind) - {SPIKE, RISE}))
def test_for_others_it_goes_on_and_says_nothing(kind: AnomalyKind):
    assert decide_rewind({kind: 301}, STORED, 0, LIMITS) is None


@pytest.mark.parametrize("action", ["alert", "skip"])
def test_nothing_goes_back_that_is_not_asked_to(action: str):
    limits = AnomaliesConfig.model_validate({"action": action})
    assert decide_rewind({SPIKE: 301}, STORED, 0, limits) is None


def test_it_does_so_as_often_as_it_may_and_then_says_so():
    assert decide_rewind({SPIKE: 301}, STORED, 1, LIMITS) == GoBack(200)
    refused = decide_rewind({SPIKE: 301}, STORED, 2, LIMITS)
    assert refused == GoOn(
        "it has gone back 2 times, as often as monitoring.anomalies.max_rewinds = 2 allows"
    )


@pytest.mark.parametrize("stored", [(), (301,), (400, 500)])
def test_without_a_checkpoint_before_it_it_can_t(stored: tuple[int, ...]):
    refused = decide_rewind({SPIKE: 301}, stored, 0, LIMITS)
    assert refused == GoOn("there is no checkpoint before step 299, where it may have begun")
