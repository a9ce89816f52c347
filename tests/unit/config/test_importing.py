"""Modules are imported without looking for garbage, and afterwards all is as before."""

import gc
from pathlib import Path

import pytest

from trainflow.config import import_function
from trainflow.config.importing import uncollected


def fail_inside() -> None:
    with uncollected():
        assert not gc.isenabled()
        raise ValueError("the module's own")


def test_the_collector_is_off_inside_and_on_again_whatever_happens():
    with pytest.raises(ValueError, match="the module's own"):
        fail_inside()
    assert gc.isenabled()


def test_one_that_was_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_jobs_module_is_imported_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "looks_at_gc.py").write_text(
        "import gc\nWAS_ON = gc.isenabled()\ndef make(): return WAS_ON\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert import_function("looks_at_gc:make", setting="data.dataset")() is False
