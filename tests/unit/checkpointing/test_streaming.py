"""Copies of shards set out together, and one version at a time."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.checkpointing.streaming import Streaming
from trainflow.epochs import INITIAL_VERSION, EpochId, Flag, Version

EPOCH = EpochId(1, 1)


def version(step: int) -> Version:
    return Version(step, EPOCH)


def test_what_an_epoch_begins_from_sets_out_first():
    streaming = Streaming()
    streaming.begin(INITIAL_VERSION)
    assert streaming.under_way == INITIAL_VERSION
    assert not streaming.commit(version(1), Flag.COPYING)
    assert streaming.under_way == INITIAL_VERSION
    assert streaming.recoverable is None


def test_once_every_shard_has_arrived_the_newest_state_sets_out():
    streaming = Streaming()
    streaming.begin(INITIAL_VERSION)
    assert streaming.commit(version(3), Flag.NONE)
    assert (streaming.recoverable, streaming.under_way) == (INITIAL_VERSION, version(3))
    assert streaming.kept == {INITIAL_VERSION, version(3)}


def test_what_one_rank_could_not_keep_is_followed_by_a_newer_state():
    streaming = Streaming(version(2), version(3))
    assert streaming.commit(version(7), Flag.COPY_LOST | Flag.COPYING)
    assert (streaming.recoverable, streaming.under_way) == (version(2), version(7))


def test_a_new_epoch_keeps_what_was_recoverable_until_its_own_base_has_arrived():
    streaming = Streaming(version(2), version(3))
    streaming.begin(version(5))
    assert streaming.kept == {version(2), version(5)}
    streaming.commit(Version(6, EpochId(1, 2)), Flag.NONE)
    assert streaming.recoverable == version(5)


@given(st.lists(st.sampled_from([Flag.NONE, Flag.COPYING, Flag.COPY_LOST])))
def test_recoverable_grows_and_is_older_than_what_is_under_way(flags: list[Flag]):
    streaming, seen = Streaming(), [INITIAL_VERSION]
    streaming.begin(INITIAL_VERSION)
    for step, each in enumerate(flags, start=1):
        sets_out = streaming.commit(version(step), each)
        assert sets_out == (streaming.under_way == version(step))
        assert streaming.under_way is not None
        if streaming.recoverable is not None:
            assert seen[-1].step <= streaming.recoverable.step < streaming.under_way.step
            seen.append(streaming.recoverable)
