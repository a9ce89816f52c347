"""Ray's paragraphs about deaths are left out of what a driver prints; all else is printed."""

import re

import pytest
from ray._private import ray_logging
from ray._private.worker import print_to_stdstream

from trainflow.coordination.ray_messages import leave_deaths_out

OF_A_WORKER = (
    "A worker died or was killed while executing a task by an unexpected system error. To "
    "troubleshoot the problem, check the logs for the dead worker."
)
OF_A_NODE = (
    "The node with node id: 26d2 and address: 10.78.0.13 and node name: 10.78.0.13 has been marked "
    "dead because the detector has missed too many heartbeats from it. This can happen when a \t(1)"
    " raylet crashes unexpectedly (OOM, etc.) \n\t(2) raylet has lagging heartbeats"
)
OF_A_RAYLET = (
    "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the "
    "user or system OOM killer, Last 20 lines of the Raylet logs:\n    [2026-11-29] (raylet) begins"
)


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_logging.stdout_deduplicator, "skip_re", None)


def print_as_ray_does(text: str) -> None:
    print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)


@pytest.mark.parametrize("text", [OF_A_WORKER, OF_A_NODE, OF_A_RAYLET])
def test_deaths_are_left_out(text: str, capsys: pytest.CaptureFixture[str]):
    print_as_ray_does(text)
    assert text[:20] in capsys.readouterr().out, "Ray prints it by itself"
    leave_deaths_out()
    print_as_ray_does(text)
    assert not capsys.readouterr().out


def test_other_messages_are_printed(capsys: pytest.CaptureFixture[str]):
    leave_deaths_out()
    print_as_ray_does("The disk of a node is nearly full.")
    assert "nearly full" in capsys.readouterr().out


def test_what_somebody_else_has_chosen_to_leave_out_stays(monkeypatch: pytest.MonkeyPatch):
    chosen = re.compile("tqdm")
    monkeypatch.setattr(ray_logging.stdout_deduplicator, "skip_re", chosen)
    leave_deaths_out()
    assert ray_logging.stdout_deduplicator.skip_re is chosen
