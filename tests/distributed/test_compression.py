"""A run whose gradients are compressed loses nothing more to a failure than one without."""

import pytest

from tests.distributed.conftest import Run
from tests.distributed.faults import Fault, Where, fail_at
from tests.distributed.training import train


@pytest.mark.parametrize("compression", ["bf16", "int8", "int4"])
def test_a_killed_run_ends_in_the_bits_of_an_undisturbed_one(run: Run, compression):
    """Killed with gradients under way, and again, by the spare, in the commit of a later step."""
    settings = {"communication": {"compression": compression}}
    undisturbed = run(train, **settings)
    faults = fail_at(1, 4, Where.IN_BACKWARD), Fault("w3", 6, Where.BEFORE_RECORD)
    outcome = run(train, *faults, spares=2, **settings)
    assert outcome.members == ("w0", "w4", "w2")
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def test_a_rank_is_killed_between_the_hops(run: Run):
    """The others hold the first hop's sums of the step, and throw them away."""
    settings = {"communication": {"compression": "int8"}}
    undisturbed = run(train, **settings)
    outcome = run(train, fail_at(2, 3, Where.BETWEEN_HOPS), spares=1, **settings)
    assert outcome.members == ("w0", "w1", "w3")
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def test_compression_changes_the_result_and_the_bytes(run: Run):
    seen = {
        compression: run(train, communication={"compression": compression})
        for compression in ("none", "bf16", "int8", "int4")
    }
    digests = {outcome.by_rank[0]["digest"] for outcome in seen.values()}
    assert len(digests) == len(seen)
    wire_bytes = [outcome.steps[8].wire_bytes for outcome in seen.values()]
    assert wire_bytes == sorted(wire_bytes, reverse=True)
    losses = [outcome.steps[8].loss for outcome in seen.values()]
    assert max(losses) - min(losses) < 0.05
