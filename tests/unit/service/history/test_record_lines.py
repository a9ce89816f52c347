"""What is read in records: damaged and forged lines say nothing, and raise nothing."""

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trainflow.config.masking import MASK
from trainflow.coordination.run_state import RunState
from trainflow.service.history import record_lines as lines
from trainflow.service.history.downsampling import Tally
from trainflow.service.history.records import EventRecord

EVENT = {"number": 1, "at_s": 5.0, "kind": "epoch", "text": "epoch 1.1", "data": {"step": 2}}
STEP = {"step": 3, "epoch": "1.2", "committed_at_s": 5.0, "loss": 2.5}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_an_event_is_read():
    expected = EventRecord(1, 5.0, "epoch", "epoch 1.1", {"step": 2})
    assert lines.parse_event(EVENT) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": True},
        {"number": 2**62},
        {"number": "1"},
        {"at_s": math.nan},
        {"at_s": None},
        {"kind": 3},
        {"text": None},
        {"data": []},
    ],
)
def test_a_damaged_event_says_nothing(change: dict[str, Any]):
    assert lines.parse_event(EVENT | change) is None


def test_what_a_database_would_refuse_is_replaced():
    event = lines.parse_event(EVENT | {"text": "a\0b\ud800", "data": {"loss": math.nan}})
    assert event is not None
    assert event.text == "a\ufffdb\ufffd\ufffd\ufffd"
    assert event.data == {"loss": "NaN"}
    json.dumps(event.data, allow_nan=False)


def test_a_step_is_read_with_all_its_numbers():
    sums = {"link_s": 0.5, "residual_ratio": None, "slow_kernels": False}
    more = {"rank": 0, "applied": True, "digest": "ab", "scalars": {"accuracy": 1}, "sums": sums}
    heard = {"heard_at_s": 5.5, "after_event": 7}
    point = lines.parse_step(STEP | more | heard | {"grad_norm": math.inf})
    assert point is not None
    assert (point.last_step, point.last_epoch, point.committed_at_s) == (3, 1 << 32 | 2, 5.0)
    assert point.metrics == {
        "loss": Tally.of(2.5),
        "applied": Tally.of(1.0),
        "scalars.accuracy": Tally.of(1.0),
        "sums.link_s": Tally.of(0.5),
        "sums.slow_kernels": Tally.of(0.0),
        "grad_norm": Tally(0.0, math.inf, -math.inf, 0, 1),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"step": 0},
        {"step": 1.5},
        {"epoch": "1"},
        {"epoch": "1.-2"},
        {"epoch": [1, 2, 3]},
        {"epoch": f"1.{2**32}"},
        {"epoch": f"{2**30}.1"},
        {"committed_at_s": "now"},
    ],
)
def test_a_damaged_step_says_nothing(change: dict[str, Any]):
    assert lines.parse_step(STEP | change) is None


def test_an_integer_that_is_no_float_is_not_finite():
    point = lines.parse_step(STEP | {"loss": 10**400})
    assert point is not None
    assert point.metrics["loss"].num_non_finite == 1


def test_epochs_keep_their_order():
    epochs = ["1.1", "1.2", "1.10", "2.1", [2, 7]]
    orders = [lines.parse_epoch(epoch) for epoch in epochs]
    assert None not in orders
    assert orders == sorted(orders, key=lambda order: order or 0)


def test_a_cut_is_read_from_its_event():
    data = {"epoch": [2, 1], "step": 0}
    assert lines.parse_cut(EventRecord(1, 1.0, "resumed", "", data)) == (2 << 32 | 1, 0)
    assert lines.parse_cut(EventRecord(1, 1.0, "epoch", "", data)) is None
    assert lines.parse_cut(EventRecord(1, 1.0, "resumed", "", {"step": 1})) is None


@pytest.mark.parametrize(
    ("kind", "members", "expected"),
    [
        ("epoch", ["slot1-1.0", "slot0-1.r1"], ["slot1-1.0", "slot0-1.r1"]),
        ("epoch", [], []),
        ("note", ["slot1-1.0"], None),
        ("epoch", "slot1-1.0", None),
        ("epoch", ["slot1-1.0", 1], None),
        ("epoch", ["../../id"], None),
        ("epoch", [""], None),
    ],
)
def test_members_are_read_from_their_epoch(kind: str, members: object, expected: list[str] | None):
    assert lines.parse_members(EventRecord(1, 1.0, kind, "", {"members": members})) == expected


def test_a_status_is_read_and_a_damaged_one_is_not():
    document = {"status": {"state": "running", "as_of_s": 5.0}, "workers": [{"lag_s": math.inf}]}
    found = lines.parse_status(document)
    assert found is not None
    assert (found.state, found.as_of_s, found.ending) == (RunState.RUNNING, 5.0, None)
    assert found.workers == [{"lag_s": "Infinity"}]
    for status in ({}, {"state": "odd", "as_of_s": 1}, {"state": "running"}, None):
        assert lines.parse_status(document | {"status": status}) is None
    assert lines.parse_status(document | {"workers": ["a"]}) is None


def test_a_result_of_an_earlier_release_ended_when_it_was_written():
    document = {"state": "failed", "reason": "why", "exit_code": 1}
    assert lines.parse_result(document, 9.0) == lines.Told(RunState.FAILED, 9.0, 1, "why")
    newer = lines.parse_result(document | {"ended_at_s": 8.0}, 9.0)
    assert newer is not None
    assert newer.ended_at_s == 8.0
    assert lines.parse_result(document | {"state": "running"}, 9.0) is None
    odd = lines.parse_result(document | {"exit_code": 2**70, "reason": 3}, 9.0)
    assert odd == lines.Told(RunState.FAILED, 9.0, None, None)


def test_settings_are_masked_once_more():
    config = {
        "name": "tiny",
        "runtime_env": {"env_vars": {"TOKEN": "s3cret"}},
        "labels": {"a": "b"},
    }
    found = lines.parse_job({"job_id": "tiny-abcdef", "config": config}, "tiny-abcdef")
    assert found is not None
    assert found.config["runtime_env"] == {"env_vars": {"TOKEN": MASK}}
    assert (found.name, found.labels) == ("tiny", {"a": "b"})
    assert lines.parse_job({"job_id": "other", "config": config}, "tiny-abcdef") is None


def test_an_id_tells_the_name():
    assert lines.name_of("big-model-abcdef") == "big-model"
    assert lines.name_of("plain") == "plain"


@given(st.dictionaries(st.sampled_from([*EVENT, *STEP, "status", "workers", "state"]), anything))
def test_whatever_a_line_holds_nothing_is_raised(line: dict[str, Any]):
    for told in (lines.parse_event(line), lines.parse_status(line), lines.parse_result(line, 1.0)):
        json.dumps(told.data if isinstance(told, EventRecord) else None, allow_nan=False)
    lines.parse_step(line)
    lines.parse_job(line, "a")
