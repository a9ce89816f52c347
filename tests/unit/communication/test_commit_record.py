import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainflow.communication.commit_record import (
    MAX_NAME_BYTES,
    MAX_SCALARS,
    RECORD_BYTES,
    CommitRecord,
    Scalar,
    decide_commit,
    exchange,
    find_odd_twins,
    unpack,
)
from trainflow.communication.group import Group
from trainflow.epochs import EpochId, EpochSpec, Flag
from trainflow.errors import CommunicationError, GroupMismatchError

AT = CommitRecord(incarnation=1, counter=2, step=3)

numbers = st.integers(0, 2**63 - 1)
floats = st.floats(allow_nan=False)
log_names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(
    lambda name: len(name.encode()) <= MAX_NAME_BYTES
)
records = st.builds(
    CommitRecord,
    incarnation=numbers,
    counter=numbers,
    step=numbers,
    flags=st.sampled_from([Flag.NONE, Flag.PAUSE, Flag.STOP | Flag.PAUSE]),
    digest=st.integers(0, 2**64 - 1),
    spot_digest=st.integers(0, 2**64 - 1),
    weight=floats,
    loss_sum=floats,
    norm=floats,
    compute_s=floats,
    wait_s=floats,
    scalars=st.dictionaries(log_names, st.builds(Scalar, floats, floats), max_size=MAX_SCALARS),
)


@given(records)
def test_a_record_comes_back_as_it_was_in_a_fixed_number_of_bytes(record):
    data = record.pack()
    assert len(data) == RECORD_BYTES
    assert unpack(data) == record


def test_a_loss_that_is_not_a_number_travels():
    assert math.isnan(unpack(replace(AT, loss_sum=math.nan).pack()).loss_sum)


@given(st.lists(records, min_size=1, max_size=4))
def test_whatever_numbers_ranks_bring_they_come_to_a_decision(found):
    decide_commit([replace(each, incarnation=1, counter=2, step=3) for each in found])


@pytest.mark.parametrize(
    ("ours", "theirs", "summed"),
    [(math.inf, -math.inf, math.nan), (1e308, 1e308, math.inf), (1.0, math.inf, math.inf)],
)
def test_what_is_not_finite_is_decided_on_like_any_other(ours: float, theirs: float, summed: float):
    pair = [
        replace(AT, weight=1.0, loss_sum=each, scalars={"ratio": Scalar(each, 1.0)})
        for each in (ours, theirs)
    ]
    decision = decide_commit(pair)
    assert [decision.loss, decision.scalars["ratio"]] == pytest.approx([summed] * 2, nan_ok=True)


def test_the_norm_is_rank_0s_on_all_ranks():
    decision = decide_commit([replace(AT, norm=3.0), replace(AT, norm=3.0000001)])
    assert decision.norm == 3.0


def test_bytes_that_are_no_record_are_refused():
    with pytest.raises(CommunicationError, match="not a commit record"):
        unpack(bytes(RECORD_BYTES))


def test_means_are_taken_by_weight():
    decision = decide_commit(
        [
            replace(AT, weight=4.0, loss_sum=4.0 * 1.0),
            replace(AT, weight=12.0, loss_sum=12.0 * 2.0),
            AT,
        ]
    )
    assert decision.total_weight == 16.0
    assert decision.loss == 1.75


def test_without_any_weight_the_loss_is_not_a_number():
    decision = decide_commit([AT, AT])
    assert decision.total_weight == 0.0
    assert math.isnan(decision.loss)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.randoms())
def test_the_sums_are_exact_so_that_the_order_of_ranks_cannot_matter(losses, random):
    ordered = [replace(AT, weight=1.0, loss_sum=loss) for loss in losses]
    shuffled = random.sample(ordered, len(ordered))
    assert decide_commit(ordered).loss == decide_commit(shuffled).loss


def test_a_request_of_any_rank_reaches_all():
    records = [AT, replace(AT, flags=Flag.PAUSE), replace(AT, flags=Flag.STOP)]
    assert decide_commit(records).flags == Flag.PAUSE | Flag.STOP


@pytest.mark.parametrize(
    ("digests", "suspects"),
    [
        ([7], ()),
        ([7, 7, 7], ()),
        ([7, 8, 7], (1,)),
        ([8, 7, 7, 9, 7], (0, 3)),
        ([7, 8], (0, 1)),
        ([7, 7, 8, 8], (0, 1, 2, 3)),
        ([7, 7, 8, 9], (0, 1, 2, 3)),
    ],
)
def test_ranks_whose_gradients_differ_from_the_majoritys_are_suspects(digests, suspects):
    assert decide_commit([replace(AT, digest=d) for d in digests]).suspects == suspects
    spots = decide_commit([replace(AT, spot_digest=d) for d in digests])
    assert (spots.miscomputing, spots.suspects) == (suspects, ())


@pytest.mark.parametrize("other", [{"step": 4}, {"counter": 1}, {"incarnation": 2}])
def test_ranks_at_different_steps_or_epochs_do_not_commit(other):
    with pytest.raises(GroupMismatchError, match="different steps"):
        decide_commit([AT, replace(AT, **other)])


def test_a_logged_value_is_averaged_over_the_ranks_that_logged_it():
    decision = decide_commit(
        [
            replace(AT, scalars={"accuracy": Scalar(1.0, 2.0), "rare": Scalar(5.0, 1.0)}),
            replace(AT, scalars={"accuracy": Scalar(8.0, 1.0)}),
            AT,
        ]
    )
    assert decision.scalars == {"accuracy": 3.0, "rare": 5.0}


def test_the_time_of_each_rank_is_told_by_rank():
    decision = decide_commit([replace(AT, compute_s=each) for each in (0.5, 0.25, 2.0)])
    assert decision.compute_s == (0.5, 0.25, 2.0)


def test_the_shortest_wait_of_all_ranks_is_told():
    decision = decide_commit([replace(AT, wait_s=each) for each in (0.5, 0.25, 2.0)])
    assert decision.shortest_wait_s == 0.25
    assert decision.wait_s == (0.5, 0.25, 2.0)


class AbortingTransport:
    """Leaves garbage, and says that all went well."""

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> "AbortingTransport":
        output.fill_(7)
        return self

    def wait(self) -> bool:
        return True

    def abort(self) -> None:
        pass


def test_what_came_out_of_a_group_that_was_aborted_is_not_looked_at(monkeypatch):
    group = Group(EpochSpec(EpochId(1, 2), ("a",), "", 0), 0, AbortingTransport(), lambda *_: None)
    waited = torch.Tensor.cpu

    def abort_then_copy(tensor: torch.Tensor) -> torch.Tensor:
        group.abort("superseded")
        return waited(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", abort_then_copy)
    assert exchange(AT, group, torch.device("cpu")) is None


def test_the_digest_that_ranks_agree_on_is_the_step_s():
    assert decide_commit([replace(AT, digest=7)] * 3).digest == 7


@pytest.mark.parametrize(
    ("hashes", "num_parts", "odd"),
    [
        ([1, 2, 1, 2, 1, 2], 2, ()),
        ([1, 2, 1, 9, 1, 2], 2, (3,)),
        ([1, 2, 8, 2, 1, 9], 2, (2, 5)),
        ([1, 2, 1, 9], 2, (0, 1, 2, 3)),
        ([1, 2, 3], 3, ()),
    ],
)
def test_a_rank_whose_part_is_another_than_its_twins_is_odd(hashes, num_parts, odd):
    assert find_odd_twins(hashes, num_parts) == odd
