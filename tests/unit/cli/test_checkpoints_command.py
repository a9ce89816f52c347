"""Looking into a folder of checkpoints from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.checkpointing.rewriting import rewrite
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.cli.conftest import CallMain
from trainflow.checkpointing.sharing import assemble
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import StoreError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints that share nothing."""
    store = CheckpointStore(str(tmp_path / "store"))
    for step, sizes in ((20, (35, 7)), (40, (50, 9))):
        reports = upload(make_snapshot(*sizes), store, 2)
        skeleton, tensors = reports[0].skeleton, assemble(reports)
        store.commit(replace(make_manifest(), step=step, skeleton=skeleton, tensors=tensors))
    return store


def damage(store: CheckpointStore, step: int) -> None:
    chunk_id = next(iter(store.read_manifest(step).chunks()))
    path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
    path.write_bytes(path.read_bytes()[:-1])


def test_what_is_there_is_listed(store: CheckpointStore, call_main: CallMain, capsys):
    assert call_main("checkpoints", "list", store.url, "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["num_bytes"]) for row in rows] == [(20, 42), (40, 59)]
    assert call_main("checkpoints", "list", store.url) == 0
    assert "STEP" in capsys.readouterr().out


def test_an_empty_folder_lists_nothing_and_says_so(tmp_path: Path, call_main: CallMain, capsys):
    assert call_main("checkpoints", "list", tmp_path / "none", "-o", "json") == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert "expected one of those that are there: none" in said.err


def test_a_listing_names_the_one_that_can_t_be_read(
    store: CheckpointStore, call_main: CallMain, capsys
):
    (Path(store.url) / "manifests" / store.committed_manifest(20)).write_text("{}")
    assert call_main("checkpoints", "list", store.url, "-o", "json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert "damaged" in first["trouble"]
    assert second["trouble"] is None


def test_a_chunk_that_is_no_file_is_damage_of_that_one_only(
    store: CheckpointStore, call_main: CallMain, capsys
):
    chunk_id = next(iter(store.read_manifest(40).chunks()))
    path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
    path.unlink()
    path.mkdir()
    assert call_main("checkpoints", "verify", store.url, "-o", "json") == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["verdict"], second["verdict"]) == ("whole", "damaged")
    assert "got no file (Is a directory)" in second["flaws"][0]


@pytest.mark.parametrize("command", [("verify",), ("prune", "--keep-last", "1")])
def test_a_folder_without_checkpoints_is_not_found(
    tmp_path: Path, call_main: CallMain, capsys, command: tuple[str, ...]
):
    name, *options = command
    assert call_main("checkpoints", name, tmp_path / "tpyo", *options) == 3
    assert "tpyo: got a checkpoint, expected one of those that are there: none" in (
        capsys.readouterr().err
    )


def test_one_that_can_t_be_read_stops_no_other(store: CheckpointStore, call_main: CallMain, capsys):
    chunk_id = next(iter(store.read_manifest(20).chunks()))
    path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
    path.unlink()
    path.symlink_to(path)
    damage(store, 40)
    assert call_main("checkpoints", "verify", store.url, "-o", "json") == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["verdict"], second["verdict"]) == ("can't be read", "damaged")
    assert call_main("checkpoints", "verify", store.url) == 1
    told = capsys.readouterr()
    assert "step 20: can't be read: " in told.out
    assert "Too many levels of symbolic links" in told.out
    assert told.err == ""


def test_a_store_that_is_down_as_a_whole_is_no_row(
    store: CheckpointStore, call_main: CallMain, capsys, monkeypatch: pytest.MonkeyPatch
):
    answers = [store.committed_steps()]

    def list_once(_: CheckpointStore) -> list[int]:
        if answers:
            return answers.pop()
        raise StoreError("the store is down")

    def refuse(*_: object) -> bytes:
        raise StoreError("no answer")

    monkeypatch.setattr(CheckpointStore, "committed_steps", list_once)
    monkeypatch.setattr(CheckpointStore, "read_chunk", refuse)
    assert call_main("checkpoints", "verify", store.url) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "the store is down" in told.err


@pytest.mark.parametrize(
    "command",
    [
        ("list", ""),
        ("list", "file://"),
        ("show", ""),
        ("verify", " "),
        ("drill", ""),
        ("prune", "", "--keep-last", "1"),
        ("rewind", "", "1"),
        ("export", "", "--to", "x", "--format", "dcp"),
        ("import", ".", "--to", "", "--format", "dcp"),
    ],
)
def test_an_empty_url_is_not_the_working_directory(
    tmp_path: Path, call_main: CallMain, capsys, monkeypatch: pytest.MonkeyPatch, command
):
    monkeypatch.chdir(tmp_path)
    assert call_main("checkpoints", *command) == 2
    assert "expected the URL or path of a folder" in capsys.readouterr().err


def test_what_a_forged_name_would_do_to_a_terminal_is_spelled_out(
    store: CheckpointStore, call_main: CallMain, capsys
):
    manifest = replace(store.read_manifest(40), step=50, job_id="job\x1b]0;title\x07\n50")
    store.commit(manifest)
    for command in ("list", "show"):
        assert call_main("checkpoints", command, store.url) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert r"job\x1b]0;title\x07\n50" in out


def test_one_is_shown_with_its_tensors(store: CheckpointStore, call_main: CallMain, capsys):
    assert call_main("checkpoints", "show", store.url, "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["step"] == 40
    assert [tensor["path"] for tensor in shown["tensors"]] == ["/t0", "/t1"]
    assert call_main("checkpoints", "show", store.url, "20") == 0
    assert "uint8" in capsys.readouterr().out


def test_a_step_that_is_not_there_is_not_found(store: CheckpointStore, call_main: CallMain, capsys):
    assert call_main("checkpoints", "show", store.url, "30") == 3
    assert "got step 30, expected one of those that are there: 20, 40" in capsys.readouterr().err


def test_all_are_verified_to_the_last_byte(store: CheckpointStore, call_main: CallMain, capsys):
    assert call_main("checkpoints", "verify", store.url) == 0
    capsys.readouterr()
    damage(store, 20)
    assert call_main("checkpoints", "verify", store.url, "-o", "json") == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["damaged", "whole"]
    assert "hash to" in rows[0]["flaws"][0]
    assert call_main("checkpoints", "verify", store.url, "40") == 0


def test_one_of_another_release_is_told_from_a_damaged_one(
    store: CheckpointStore, call_main: CallMain, capsys
):
    rewrite(store, 40, version=2)
    told = "got version 2 of the format, expected 1: another release of TrainFlow"
    assert call_main("checkpoints", "verify", store.url, "-o", "json") == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["whole", "of another release"]
    assert told in rows[1]["flaws"][0]
    assert call_main("checkpoints", "verify", store.url) == 1
    out = capsys.readouterr().out
    assert "of another release" in out
    assert "damaged" not in out
    assert call_main("checkpoints", "list", store.url) == 0
    assert told in capsys.readouterr().out
    assert call_main("checkpoints", "show", store.url) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("created_at_s", [4e18, -4e18, 253402300800, -1])
def test_a_time_that_no_date_can_show_is_trouble_of_that_one_only(
    store: CheckpointStore, call_main: CallMain, capsys, created_at_s: float
):
    rewrite(store, 20, created_at_s=created_at_s)
    assert call_main("checkpoints", "list", store.url, "-o", "json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert "expected a number from 0 to 253402300799" in first["trouble"]
    assert second["trouble"] is None
    assert call_main("checkpoints", "show", store.url, "20") == 1
    assert "/created_at_s: got" in capsys.readouterr().err


def test_the_last_second_that_a_date_can_show_is_shown(
    store: CheckpointStore, call_main: CallMain, capsys
):
    rewrite(store, 20, created_at_s=253402300799)
    rewrite(store, 40, created_at_s=0)
    assert call_main("checkpoints", "list", store.url) == 0
    out = capsys.readouterr().out
    assert "9999-12-31 23:59:59" in out
    assert "1970-01-01 00:00:00" in out
