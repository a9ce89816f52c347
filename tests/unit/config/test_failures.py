"""How a job says what tells a node that it is to go."""

import pytest
from pydantic import ValidationError

from tests.distributed.jobs import make_job


@pytest.mark.parametrize("path", ["notices:Spot", "clouds.notices:make_source", None])
def test_a_source_of_notices_is_named_by_its_module(path: str | None):
    assert make_job(failures={"preemption_source": path}).failures.preemption_source == path


@pytest.mark.parametrize("path", ["", "notices", "clouds/notices.py:Spot", ":Spot", "notices:A.b"])
def test_what_names_no_source_of_notices_is_refused(path: str):
    with pytest.raises(ValidationError, match=r"module:name, as in clouds\.notices:Spot, or null"):
        make_job(failures={"preemption_source": path})


def test_a_node_hears_of_it_in_one_way():
    both = {"preemption_notice": "/run/preempted", "preemption_source": "notices:Spot"}
    told = (
        "failures.preemption_source: got notices:Spot; expected null with "
        "failures.preemption_notice = /run/preempted; leave one of them out"
    )
    with pytest.raises(ValidationError, match=told):
        make_job(failures=both)
