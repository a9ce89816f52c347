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


def test_some_parameters_go_otherwise(run: Run):
    communication = {"compression": "int8", "per_parameter": {"*.2.weight": "none", "*": "int4"}}
    mixed = run(train, communication=communication)
    int4 = run(train, communication={"compression": "int4"})
    plain = run(train, communication={"compression": "none"})
    assert len({result["digest"] for result in mixed.by_rank}) == 1
    sent = [outcome.steps[8].wire_bytes for outcome in (int4, mixed, plain)]
    assert sent[0] < sent[1] < sent[2]
    assert all(outcome.steps[8].sums.plain_bytes == sent[2] for outcome in (int4, mixed, plain))


def test_the_first_steps_can_be_summed_uncompressed(run: Run):
    outcome = run(train, communication={"compression": "top_k", "warmup_steps": 3})
    plain = run(train, communication={"compression": "none"})
    sent = {number: report.wire_bytes for number, report in outcome.steps.items()}
    assert sent[1] == sent[2] == sent[3] == plain.steps[3].wire_bytes > sent[4] == sent[8]
    assert [outcome.steps[n].loss for n in (1, 2, 3, 4)] == [
        plain.steps[n].loss for n in (1, 2, 3, 4)
    ]
    assert outcome.steps[6].loss != plain.steps[6].loss


def test_what_sums_took_is_reported(run: Run):
    fed_back = {"compression": "int8", "error_feedback": True}
    outcome = run(train, communication=fed_back)
    sums = outcome.steps[8].sums
    assert sums.before_s > 0
    assert sums.link_s > 0
    assert sums.after_s > 0
    assert 0 < sums.residual_ratio < 1
    assert not sums.slow_kernels
    assert run(train).steps[8].sums.residual_ratio is None


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
