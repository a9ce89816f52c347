from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.data.order import Microbatch, SampleOrder, deal_microbatches


@given(num_samples=st.integers(1, 200), seed=st.integers(0, 2**32), pass_index=st.integers(0, 9))
def test_every_pass_uses_each_sample_once(num_samples: int, seed: int, pass_index: int) -> None:
    order = SampleOrder(num_samples, seed, "shuffled")
    start = pass_index * num_samples
    indices = order.indices(start, start + num_samples)
    assert sorted(indices) == list(range(num_samples))


@given(data=st.data(), num_samples=st.integers(1, 50))
def test_a_range_reads_alike_whole_and_in_pieces(data: st.DataObject, num_samples: int) -> None:
    order = SampleOrder(num_samples, 5, "shuffled")
    cuts = data.draw(st.lists(st.integers(0, 4 * num_samples), min_size=2).map(sorted))
    whole = order.indices(cuts[0], cuts[-1])
    pieces = [order.indices(start, stop) for start, stop in pairwise(cuts)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_passes_differ() -> None:
    order = SampleOrder(100, 0, "shuffled")
    assert order.indices(0, 100).tolist() != order.indices(100, 200).tolist()


def test_sequential_order_starts_over_after_each_pass() -> None:
    assert SampleOrder(3, 0, "sequential").indices(1, 8).tolist() == [1, 2, 0, 1, 2, 0, 1]


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        SampleOrder(0, 0, "shuffled")


@given(
    consumed=st.integers(0, 10**9),
    global_batch_size=st.integers(1, 200),
    microbatch_size=st.integers(1, 50),
    world_size=st.integers(1, 40),
)
def test_ranks_share_out_a_step_exactly_and_in_order(
    consumed: int, global_batch_size: int, microbatch_size: int, world_size: int
) -> None:
    shares = [
        deal_microbatches(consumed, global_batch_size, microbatch_size, world_size, rank)
        for rank in range(world_size)
    ]
    dealt = [microbatch for share in shares for microbatch in share]
    assert [each.index for each in dealt] == list(range(len(dealt)))
    positions = [position for each in dealt for position in range(each.start, each.stop)]
    assert positions == list(range(consumed, consumed + global_batch_size))
    assert all(each.num_samples == microbatch_size for each in dealt[:-1])
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(world_size=st.integers(1, 20))
def test_the_world_size_changes_who_computes_a_microbatch_not_what_it_is(world_size: int) -> None:
    alone = deal_microbatches(70, 33, 4, 1, 0)
    shared = [deal_microbatches(70, 33, 4, world_size, rank) for rank in range(world_size)]
    assert sum(shared, ()) == alone


def test_a_share_as_it_is_dealt() -> None:
    assert deal_microbatches(100, 10, 4, 2, 0) == (Microbatch(0, 100, 104), Microbatch(1, 104, 108))
    assert deal_microbatches(100, 10, 4, 2, 1) == (Microbatch(2, 108, 110),)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=r"rank must be in \[0, 3\)"):
        deal_microbatches(0, 8, 2, 3, rank)


@pytest.mark.parametrize(("global_batch_size", "microbatch_size"), [(0, 1), (8, 0)])
def test_empty_batches_are_refused(global_batch_size: int, microbatch_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        deal_microbatches(0, global_batch_size, microbatch_size, 1, 0)
