import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.communication.compression.cost_model import (
    WORTH_FROM,
    Candidate,
    Link,
    choose,
    predict_s,
)

MEGABYTE = 1_000_000
# 100 MB of gradients over two ranks; a processor that quantises, sums and decodes 2.5 GB/s.
NONE = Candidate(100 * MEGABYTE, 24)
INT8 = Candidate(25 * MEGABYTE, 48, arithmetic_s=0.04)
SLOW, FAST = Link(1e-3, 12 * MEGABYTE), Link(1e-5, 10_000 * MEGABYTE)

links = st.builds(Link, st.floats(0, 0.1), st.floats(1e5, 1e11))
candidates = st.builds(Candidate, st.integers(0, 10**10), st.integers(1, 1000), st.floats(0, 100.0))


def test_a_slow_link_is_worth_the_arithmetic():
    choice = choose({"none": NONE, "int8": INT8}, SLOW)
    assert choice.name == "int8"
    assert choice.predicted_s["none"] / choice.predicted_s["int8"] == pytest.approx(4, rel=0.05)


def test_a_link_as_fast_as_memory_is_not():
    assert choose({"none": NONE, "int8": INT8}, FAST).name == "none"


def test_many_small_sums_are_bound_by_latency():
    far = Link(0.05, 1000 * MEGABYTE)
    assert choose({"none": NONE, "int8": INT8}, far).name == "none"


def test_a_pipeline_takes_as_long_as_its_slower_stage():
    link = Link(0.0, 1 * MEGABYTE)
    assert predict_s(Candidate(10 * MEGABYTE, 10, arithmetic_s=2.0), link) == pytest.approx(10.2)
    assert predict_s(Candidate(2 * MEGABYTE, 10, arithmetic_s=10.0), link) == pytest.approx(10.2)


@given(st.dictionaries(st.sampled_from(["bf16", "int8", "int4"]), candidates), candidates, links)
def test_what_is_chosen_is_the_fastest_and_worth_it(others, none, link):
    choice = choose(others | {"none": none}, link)
    fastest_s = min(choice.predicted_s.values())
    if choice.name == "none":
        assert choice.predicted_s["none"] <= WORTH_FROM * fastest_s
    else:
        assert choice.predicted_s[choice.name] == fastest_s
        assert choice.predicted_s["none"] >= WORTH_FROM * fastest_s
