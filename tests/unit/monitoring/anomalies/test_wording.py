"""What a person is told of an anomaly."""

import math

import pytest

from trainflow.monitoring.anomalies.detector import Anomaly, Ended
from trainflow.monitoring.anomalies.kinds import AnomalyKind, EndCause
from trainflow.monitoring.anomalies.wording import describe, describe_end


@pytest.mark.parametrize(
    ("anomaly", "text"),
    [
        (
            Anomaly(AnomalyKind.NOT_FINITE, 7, math.nan, 0.0),
            "step 7: the loss or the gradient's norm is nan",
        ),
        (
            Anomaly(AnomalyKind.LOSS_SPIKE, 1201, 8.13212, 2.3911, 14.23),
            "step 1201: the loss 8.1321 is 3.4 times the 2.3911 that was to be expected, "
            "+14.2 spreads",
        ),
        (
            Anomaly(AnomalyKind.NORM_LOW, 9, 0.01, 2.0, -30.0),
            "step 9: the gradient's norm 0.01 is 0.005 times the 2 that was to be expected, "
            "-30.0 spreads",
        ),
        (
            Anomaly(AnomalyKind.NORM_HIGH, 9, 123.4, 1.0, 30.0),
            "step 9: the gradient's norm 123.4 is 123.4 times the 1 that was to be expected, "
            "+30.0 spreads",
        ),
        (
            Anomaly(AnomalyKind.LOSS_SPIKE, 5, 4.0, -1.0, 9.0),
            "step 5: the loss 4 is where -1 was to be expected, +9.0 spreads",
        ),
        (
            Anomaly(AnomalyKind.LOSS_RISE, 640, 2.5, 2.25),
            "step 640: the loss has risen within some hundred steps, to 2.5 from the 2.25 that it "
            "had come down to",
        ),
        (
            Anomaly(AnomalyKind.LOSS_DRIFT, 640, 2.5, 2.25),
            "step 640: the loss has risen slowly, to 2.5 from the 2.25 that it had come down to",
        ),
        (
            Anomaly(AnomalyKind.LOSS_STALLED, 200, 2.1, 2.0),
            "the loss has not fallen below 2 since step 200",
        ),
        (
            Anomaly(AnomalyKind.LOSS_STALLED, 1, 2.5, 2.5),
            "the loss is the very same since step 1: 2.5",
        ),
    ],
)
def test_it_says_what_how_far_and_since_when(anomaly: Anomaly, text: str):
    assert describe(anomaly) == text


@pytest.mark.parametrize("kind", AnomalyKind)
@pytest.mark.parametrize("cause", EndCause)
def test_every_end_says_what_is_over_and_why(kind: AnomalyKind, cause: EndCause):
    text = describe_end(Ended(Anomaly(kind, 5, 1.0, 1.0), cause, 9))
    assert text.startswith("step 9: a ")
    assert "(since step 5): " in text
