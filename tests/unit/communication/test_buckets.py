import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainflow.communication.buckets import TAIL_DTYPE, TAIL_MAX_BYTES, ParameterSpec, plan_buckets

LARGE = (200, 100)  # 80,000 bytes of fp32: more than the tail takes
LARGE_BYTES = 80_000

specs = st.builds(
    ParameterSpec,
    st.text("abc.", min_size=1, max_size=8),
    st.lists(st.integers(1, 300), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
parameter_lists = st.lists(specs, min_size=1, max_size=12)
bucket_sizes = st.integers(1, 1_000_000)


def matrices(count: int, dtype: torch.dtype = torch.float32) -> list[ParameterSpec]:
    return [ParameterSpec(f"w{i}", LARGE, dtype) for i in range(count)]


@given(parameter_lists, bucket_sizes)
def test_every_parameter_has_one_slot_and_slots_do_not_overlap(parameters, bucket_bytes):
    layout = plan_buckets(parameters, bucket_bytes)
    slots = [slot for bucket in layout.buckets for slot in bucket.slots]
    assert sorted(slot.parameter for slot in slots) == list(range(len(parameters)))
    for bucket in layout.buckets:
        ends = [0]
        for slot in bucket.slots:
            assert slot.offset == ends[-1]
            assert slot.num_elements == parameters[slot.parameter].num_elements
            assert parameters[slot.parameter].dtype == bucket.dtype
            ends.append(slot.offset + slot.num_elements)
        flags = len(parameters) if bucket is layout.buckets[-1] else 0
        assert bucket.num_elements == ends[-1] + flags


@given(parameter_lists, bucket_sizes)
def test_the_tail_is_last_and_ends_with_a_flag_for_each_parameter(parameters, bucket_bytes):
    layout = plan_buckets(parameters, bucket_bytes)
    tail = layout.buckets[-1]
    assert tail.dtype == TAIL_DTYPE
    assert tail.num_elements - layout.flags_offset == len(parameters)
    assert {slot.parameter for slot in tail.slots} == {
        i for i, spec in enumerate(parameters) if spec.is_small
    }


@given(parameter_lists, bucket_sizes)
def test_a_bucket_is_no_larger_than_asked_unless_one_parameter_is(parameters, bucket_bytes):
    for bucket in plan_buckets(parameters, bucket_bytes).buckets[:-1]:
        num_bytes = bucket.num_elements * bucket.dtype.itemsize
        assert len(bucket.slots) == 1 or num_bytes <= bucket_bytes


def test_buckets_fill_from_the_end_of_the_model():
    layout = plan_buckets(matrices(3), bucket_bytes=2 * LARGE_BYTES)
    assert [[slot.parameter for slot in bucket.slots] for bucket in layout.buckets] == [
        [2, 1],
        [0],
        [],
    ]


def test_types_do_not_share_a_bucket():
    parameters = [*matrices(1), *matrices(1, torch.bfloat16), *matrices(1)]
    layout = plan_buckets(parameters, bucket_bytes=10 * LARGE_BYTES)
    assert [bucket.dtype for bucket in layout.buckets] == [
        torch.float32,
        torch.bfloat16,
        torch.float32,
        TAIL_DTYPE,
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "is_small"),
    [
        ((1_000_000,), torch.float32, True),
        ((TAIL_MAX_BYTES // 4 - 1, 1), torch.float32, True),
        ((TAIL_MAX_BYTES // 4, 1), torch.float32, False),
        ((3,), torch.bfloat16, False),
        ((), torch.float32, True),
    ],
)
def test_what_is_small_is_a_vector_or_below_the_limit_and_in_the_tails_type(shape, dtype, is_small):
    assert ParameterSpec("w", shape, dtype).is_small is is_small


def test_the_fingerprint_tells_layouts_apart():
    parameters = matrices(2)
    changed = [
        plan_buckets(parameters, 1000),
        plan_buckets(parameters[:1], 10_000),
        plan_buckets(parameters[::-1], 10_000),
        plan_buckets([parameters[0], replace(parameters[1], name="other")], 10_000),
        plan_buckets([parameters[0], replace(parameters[1], shape=(100, 200))], 10_000),
        plan_buckets([parameters[0], replace(parameters[1], dtype=torch.bfloat16)], 10_000),
        plan_buckets(parameters, 10_000),
    ]
    assert len({layout.fingerprint for layout in changed}) == len(changed)


@pytest.mark.slow
def test_another_process_lays_out_the_same():
    program = (
        "import json, torch\n"
        "from trainflow.communication.buckets import ParameterSpec, plan_buckets\n"
        f"specs = [ParameterSpec(f'w{{i}}', {LARGE}, torch.float32) for i in range(3)]\n"
        f"layout = plan_buckets(specs, {2 * LARGE_BYTES})\n"
        "print(json.dumps([layout.fingerprint, [b.num_elements for b in layout.buckets]]))\n"
    )
    environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env=environment,
        timeout=60,
    )
    here = plan_buckets(matrices(3), 2 * LARGE_BYTES)
    expected = [here.fingerprint, [bucket.num_elements for bucket in here.buckets]]
    assert json.loads(done.stdout) == expected
