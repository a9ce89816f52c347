"""Kernels are built once for a kind of machine; where they can't be, that is said and no more."""

import os
import pwd
import shutil
from pathlib import Path

import pytest

from trainflow.communication.compression import build
from trainflow.communication.compression.build import load_library
from trainflow.communication.compression.load_times import seconds_loading
from trainflow.errors import CommunicationError


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cache of each test's own; what a process has loaded is forgotten."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build._load_once.cache_clear()
    yield tmp_path / "cache" / "trainflow" / "kernels"
    build._load_once.cache_clear()


def make_compiler(folder: Path, script: str) -> None:
    folder.mkdir(exist_ok=True)
    compiler = folder / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)


def test_what_was_built_is_found_where_there_is_no_compiler(cache_home, monkeypatch, tmp_path):
    load_library("low_rank")
    build._load_once.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert load_library("low_rank").expand
    assert sorted(path.suffix for path in cache_home.iterdir()) == [".so", ".xxh3"]


def test_what_it_takes_to_have_a_library_is_counted_once():
    before_s = seconds_loading()
    load_library("low_rank")
    after_s = seconds_loading()
    assert after_s > before_s
    load_library("low_rank")
    assert seconds_loading() == after_s


def test_another_compiler_does_not_build_it_again(cache_home, monkeypatch, tmp_path):
    load_library("low_rank")
    build._load_once.cache_clear()
    make_compiler(tmp_path / "bin", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert load_library("low_rank").expand


@pytest.mark.parametrize("num_bytes", [0, 100, 5000])
def test_one_that_was_torn_is_built_again(cache_home, num_bytes):
    load_library("low_rank")
    build._load_once.cache_clear()
    (library,) = cache_home.glob("*.so")
    torn = library.read_bytes()[:num_bytes]
    library.unlink()  # this process has the other one mapped
    library.write_bytes(torn)
    assert load_library("low_rank").expand
    assert library.stat().st_size > 5000


def test_no_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(CommunicationError, match=r"got none of c\+\+, g\+\+.*apt-get install"):
        load_library("low_rank")


def test_a_compiler_that_hangs_is_given_up_and_waited_for_once(monkeypatch, tmp_path):
    sleep = shutil.which("sleep")
    make_compiler(tmp_path / "bin", f"echo . >>{tmp_path}/calls; exec {sleep} 1000")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(build, "_BUILT_WITHIN_S", 3.0)
    for _ in range(2):
        with pytest.raises(CommunicationError, match="got no library within"):
            load_library("low_rank")
    assert (tmp_path / "calls").read_text().count(".") == 1


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def know_nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", know_nobody)
    with pytest.raises(CommunicationError, match=r"expected a home folder .*set XDG_CACHE_HOME"):
        load_library("low_rank")
