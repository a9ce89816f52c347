"""Settings that could never do anything are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.distributed.jobs import make_job


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"failures": {"replace_stragglers": True}, "workers": {"minimum": 1, "target": 1}},
            "failures.replace_stragglers: got true; expected false with workers.target = 1, where "
            "there is nobody to compare with",
        ),
        (
            {"failures": {"probe_after_s": 30}},
            "failures.probe_after_s: got 30; expected nothing with failures.isolate_after = null",
        ),
    ],
)
def test_each_is_named_with_what_to_change(settings: dict[str, Any], told: str):
    with pytest.raises(ValidationError) as refusal:
        make_job(**settings)
    assert told in str(refusal.value)


def test_what_is_as_by_default_is_none():
    make_job(failures={"probe_after_s": 60.0})
    make_job(failures={"probe_after_s": 30.0, "isolate_after": 3})
