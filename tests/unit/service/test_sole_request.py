"""One request at a time that resumes a job."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainflow.errors import ConflictError
from trainflow.service.sole_request import alone_with

HOLDS = """import sys
from trainflow.service.sole_request import alone_with
with alone_with("job-1"):
    print("alone", flush=True)
    sys.stdin.read()
"""


def test_who_dies_is_in_nobodys_way(home: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"alone\n"
        with pytest.raises(ConflictError, match="another request resumes"), alone_with("job-1"):
            pass
        with alone_with("job-2"):
            pass
        other.kill()
        other.wait()
    with alone_with("job-1"):
        assert list((home / "submissions").iterdir())
    assert list((home / "submissions").iterdir()) == []


def test_who_waited_for_a_file_that_is_gone_is_not_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    del home  # it is there
    opened = Path.open

    def open_late(path: Path, mode: str) -> object:
        file = opened(path, mode)
        path.unlink()  # whoever held it is done
        return file

    monkeypatch.setattr(Path, "open", open_late)
    with pytest.raises(ConflictError), alone_with("job-1"):
        pass
