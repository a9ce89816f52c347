"""Where jobs may work."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.service.problems import ProblemError
from trainflow.service.working_directory import contain


def test_a_folder_under_a_root_is_taken_as_it_really_is(tmp_path: Path):
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "root")
    assert contain(str(tmp_path / "alias" / "a"), [str(tmp_path / "alias")]) == tmp_path / "root/a"
    assert contain(str(tmp_path / "root"), ["/nowhere", str(tmp_path / "root")]).name == "root"


@pytest.mark.parametrize("name", ["root2", "file", "out", "root/../root", "root/absent", "root/up"])
def test_what_is_outside_is_refused(name: str, tmp_path: Path):
    for folder in ("root", "root2", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "root" / "up").symlink_to("..")
    with pytest.raises(ProblemError, match="in one of the service's roots"):
        contain(str(tmp_path / name), [str(tmp_path / "root")])


def test_without_roots_there_is_no_working_directory(tmp_path: Path):
    with pytest.raises(ProblemError, match=r"\(none\)"):
        contain(str(tmp_path), [])


@given(st.text(max_size=80))
def test_whatever_is_given_is_answered(directory: str):
    with pytest.raises(ProblemError):
        contain(directory, ["/nowhere-at-all"])
