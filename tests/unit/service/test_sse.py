"""Server-sent events as text."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.service.event_source import parse_events
from trainflow.service import sse

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5))
def test_what_is_framed_is_read_back_whatever_is_in_it(documents: list[dict[str, Any]]):
    body = sse.frame_retry(1.5) + sse.HEARTBEAT
    for number, document in enumerate(documents, start=1):
        body += sse.frame_event(number, document) + sse.HEARTBEAT
    events = parse_events(body)
    assert [(each.id, json.loads(each.data)) for each in events] == [
        (str(number), document) for number, document in enumerate(documents, start=1)
    ]
    assert all(each.name == "message" for each in events)


def test_who_is_told_to_begin_anew_comes_back_with_the_number_before_the_first():
    (event,) = parse_events(sse.frame_anew(57))
    assert (event.name, event.id, event.data) == ("anew", "0", '{"known": 57}')


def test_an_event_of_a_name_has_no_number():
    (event,) = parse_events(sse.frame_named("end", {"last_event": 3}))
    assert (event.name, event.id, event.data) == ("end", None, '{"last_event": 3}')
