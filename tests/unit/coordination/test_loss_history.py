from pathlib import Path
from typing import Any

from tests.unit.coordination.fakes import FakeClock
from trainflow.coordination.loss_history import LossHistory
from trainflow.coordination.run_record import RunRecord

EPOCH = ("epoch", {"epoch": "1.1", "members": ["a", "b", "c"]})


def failure(**data: Any) -> tuple[str, dict[str, Any]]:
    return "failure", data


def tell(*events: tuple[str, dict[str, Any]]) -> LossHistory:
    history = LossHistory()
    for at_s, (kind, data) in enumerate(events):
        history.take({"at_s": float(at_s), "kind": kind, "text": f"{kind} {at_s}", "data": data})
    return history


def test_members_that_are_gone_are_found_with_their_ranks():
    assert tell(EPOCH).find_untold({"b", "spare"}) == {"a": 0, "c": 2}
    assert tell(EPOCH).find_untold({"a", "b", "c"}) == {}
    assert tell().find_untold(set()) == {}


def test_one_that_a_failure_names_is_not_found_again():
    assert tell(EPOCH, failure(worker="a", rank=0)).find_untold({"b"}) == {"c": 2}


def test_a_spare_that_took_a_rank_in_an_epoch_no_event_tells_of_is_found():
    history = tell(EPOCH, failure(worker="b", rank=1))
    assert history.find_untold({"a", "c"}, ("a", "spare", "c")) == {"spare": 1}


def test_only_the_newest_epoch_counts():
    history = tell(EPOCH, ("epoch", {"epoch": "1.2", "members": ["c", "d"]}))
    assert history.find_untold({"d"}) == {"c": 0}
    assert [history.rank_of(each) for each in ("a", "c", "d")] == [None, 0, 1]


def test_workers_that_are_launched_from_nothing_may_bear_names_of_lost_ones():
    history = tell(EPOCH, failure(worker="a"), ("submitted", {}), EPOCH)
    assert history.find_untold(set()) == {"a": 0, "b": 1, "c": 2}
    assert tell(EPOCH, ("submitted", {})).find_untold(set()) == {}


def test_every_failure_has_its_time_one_of_an_epoch_too():
    history = tell(failure(worker="a"), EPOCH, failure(epoch="1.1"))
    assert history.failed_at_s == [0.0, 2.0]
    assert history.last == "failure 2"


def test_a_spare_is_no_failure_and_explains_none():
    spare = failure(worker="d", rank=None, spare=True, bundle=3, starts_in_vain=2)
    history = tell(EPOCH, failure(epoch="1.1"), spare)
    assert (history.failed_at_s, history.spares_lost_at_s) == ([1.0], [2.0])
    assert history.is_told("d")
    assert history.starts_in_vain == {3: 2}


def test_a_death_that_is_heard_after_the_collective_that_failed_of_it_is_one_failure():
    broken, lost = failure(epoch="1.1"), failure(worker="a", rank=0)
    assert tell(EPOCH, broken, lost).failed_at_s == [2.0]
    another = failure(worker="b", rank=1)
    assert tell(EPOCH, broken, lost, another).failed_at_s == [2.0, 3.0]
    preempted = failure(worker="a", rank=0, preempted=True)
    history = tell(EPOCH, broken, preempted)
    assert (history.failed_at_s, history.preempted_at_s) == ([], [2.0])


def test_a_loss_that_explains_nothing_is_another_failure():
    broken, spare = failure(epoch="1.1"), failure(worker="spare", rank=None)
    assert tell(EPOCH, broken, spare).failed_at_s == [1.0, 2.0]
    again = "epoch", {"epoch": "1.2", "members": ["a", "b", "c"]}
    lost = failure(worker="a", rank=0)
    assert tell(EPOCH, broken, again, lost).failed_at_s == [1.0, 3.0], "it was there after it"


def test_a_record_that_is_read_again_knows_the_same(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    record.add_event("epoch", "epoch 1.1", members=["a", "b"])
    record.add_event("failure", "lost a", worker="a")
    for known in (record, RunRecord(tmp_path, FakeClock())):
        assert known.losses.find_untold(set()) == {"b": 1}
        assert known.losses.failed_at_s == [1000.0]
