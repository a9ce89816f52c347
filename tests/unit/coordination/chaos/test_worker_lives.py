"""How long workers were there is found from what events tell of them."""

from typing import Any

from trainflow.coordination.chaos.worker_lives import compare_ledger, find_lives


def tell(kind: str, at_s: float, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "at_s": at_s, "text": "", "data": data}


BEGUN = [tell("submitted", 10.0), tell("launched", 12.0, workers=["a", "b"])]


def test_a_worker_is_there_from_the_submission_or_when_it_was_started():
    events = [*BEGUN, tell("warm", 15.0, worker="b"), tell("respawned", 20.0, worker="c")]
    assert find_lives(events, 25.0) == {"a": 15.0, "b": 15.0, "c": 5.0}


def test_it_is_there_until_it_is_lost_or_given_up():
    lost = [tell("failure", 14.0, worker="a"), tell("failure", 15.0, epoch="1.1")]
    events = [*BEGUN, *lost, tell("respawned", 16.0, worker="c")]
    events += [tell("withdrawn", 18.0, worker="c"), tell("failure", 19.0, worker="a")]
    assert find_lives(events, 25.0) == {"a": 4.0, "b": 15.0, "c": 2.0}


def test_who_is_gone_when_a_coordinator_comes_back_is_there_until_it_is_told_of():
    events = [*BEGUN, tell("coordinator_restarted", 20.0, workers=[])]
    events += [tell("failure", 20.5, worker="a"), tell("coordinator_restarted", 22.0, workers=[])]
    assert find_lives(events, 25.0) == {"a": 10.5, "b": 10.0}


def test_the_ledger_s_causes_are_compared_with_that():
    told = tell("goodput", 20.0, seconds={"productive": 15.0, "idle": 4.5})
    assert compare_ledger([*BEGUN, told]) == (19.5, 20.0)
    assert compare_ledger(BEGUN) is None
