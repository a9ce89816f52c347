"""Drills and pruning, from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.checkpointing.rewriting import rewrite
from tests.unit.checkpointing.small_job import STEP, all_files, damage, make_job, save
from tests.unit.cli.conftest import CallMain
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.store import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.mark.slow
class TestDrill:
    def test_a_checkpoint_that_comes_back_passes(
        self, store: CheckpointStore, call_main: CallMain, capsys
    ):
        manifest = save(store, make_job())
        before = all_files(Path(store.url))
        capsys.readouterr()
        assert call_main("checkpoints", "drill", store.url, "-o", "json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["passed"] is True
        assert answer["num_bytes"] == manifest.num_bytes
        assert all_files(Path(store.url)) == before

    def test_one_that_does_not_fails_and_names_it(
        self, store: CheckpointStore, call_main: CallMain, capsys
    ):
        manifest = save(store, make_job())
        store.remove_marker(STEP)
        config = make_job(forgets=True).model_dump(mode="json")
        store.commit(replace(manifest, config=config, attempt="x"))
        assert call_main("checkpoints", "drill", store.url) == 1
        out = capsys.readouterr().out
        assert f"step {STEP}: NOT what was saved" in out
        assert "/'registered'/'average'/'pair'/1: got 0.25 after the restore, expected 0.75" in out

    def test_a_damaged_one_fails(self, store: CheckpointStore, call_main: CallMain, capsys):
        damage(store, save(store, make_job()), "/models/model/embed.weight")
        assert call_main("checkpoints", "drill", store.url, str(STEP)) == 1
        assert "use an earlier checkpoint" in capsys.readouterr().err

    def test_one_that_is_not_there_is_not_found(
        self, store: CheckpointStore, call_main: CallMain, capsys
    ):
        assert call_main("checkpoints", "drill", store.url) == 3
        assert "got a checkpoint, expected one of those that are there: none" in (
            capsys.readouterr().err
        )

    def test_it_is_given_up_when_the_time_is_over(
        self, store: CheckpointStore, call_main: CallMain, capsys
    ):
        save(store, make_job())
        assert call_main("checkpoints", "drill", store.url, "--timeout-s", "1") == 1
        assert "no answer within 1 s" in capsys.readouterr().err


@pytest.mark.parametrize("timeout_s", ["inf", "1e12", "nan", "0.5", "-1"])
def test_a_drill_that_never_ends_can_not_be_asked_for(
    store: CheckpointStore, call_main: CallMain, capsys, timeout_s: str
):
    assert call_main("checkpoints", "drill", store.url, f"--timeout-s={timeout_s}") == 2
    assert "expected 1 to 604800 seconds" in capsys.readouterr().err


class TestPrune:
    @pytest.fixture
    def steps(self, store: CheckpointStore) -> list[Manifest]:
        """Four checkpoints; the last is the run's last step."""
        first = save(store, make_job(max_steps=STEP), step=10)
        for step in (20, 30, STEP):
            store.commit(replace(first, step=step))
        return [store.read_manifest(step) for step in store.committed_steps()]

    @pytest.mark.usefixtures("steps")
    def test_what_the_policy_does_not_keep_goes(self, store, call_main: CallMain, capsys):
        call = ("checkpoints", "prune", store.url, "--keep-last", "1", "--keep-every", "20")
        assert call_main(*call, "--dry-run") == 0
        assert "would remove steps 10, 30: 0 chunks, 0 bytes" in capsys.readouterr().out
        assert store.committed_steps() == [10, 20, 30, STEP]
        assert call_main(*call) == 0
        said = capsys.readouterr().out
        assert said == "removed steps 10, 30: 0 chunks, 0 bytes\nkept steps 20, 40\n"
        assert store.committed_steps() == [20, STEP]

    def test_a_run_that_may_go_on_is_not_disturbed_unasked(
        self, store, call_main: CallMain, capsys
    ):
        first = save(store, make_job(max_steps=STEP), step=10)
        store.commit(replace(first, step=20))
        call = ("checkpoints", "prune", store.url, "--keep-last", "1")
        assert call_main(*call) == 6
        assert "has 40 steps, and is at 20), expected none; stop it" in capsys.readouterr().err
        assert store.committed_steps() == [10, 20]
        assert call_main(*call, "--yes") == 0
        assert store.committed_steps() == [20]

    def test_a_run_may_be_writing_its_first_checkpoint(
        self, store, call_main: CallMain, capsys, monkeypatch: pytest.MonkeyPatch
    ):
        codes: list[int] = []
        mark = CheckpointStore._mark

        def prune_first(own: CheckpointStore, step: int, marker: bytes) -> None:
            codes.append(call_main("checkpoints", "prune", store.url, "--keep-last", "1"))
            mark(own, step, marker)

        monkeypatch.setattr(CheckpointStore, "_mark", prune_first)
        save(store, make_job(max_steps=1000))
        assert codes == [6]
        assert "a run may be writing its first" in capsys.readouterr().err
        assert call_main("checkpoints", "verify", store.url) == 0

    def test_what_is_left_of_a_first_one_goes_when_asked(self, store, call_main: CallMain):
        save(store, make_job())
        store.remove_marker(STEP)
        call = ("checkpoints", "prune", store.url, "--keep-last", "1")
        assert call_main(*call) == 6
        assert all_files(Path(store.url))
        assert call_main(*call, "--yes") == 0
        assert all_files(Path(store.url)) == {}

    @pytest.mark.usefixtures("steps")
    def test_a_damaged_newest_one_is_not_taken_for_a_run_s_end(
        self, store, call_main: CallMain, capsys
    ):
        config = make_job(max_steps=100).model_dump(mode="json")
        store.commit(replace(store.read_manifest(STEP), step=60, config=config))
        path = Path(store.url) / "manifests" / store.committed_manifest(60)
        path.write_bytes(path.read_bytes()[:-10])
        before = all_files(Path(store.url))
        assert call_main("checkpoints", "prune", store.url, "--keep-last", "1") == 6
        assert "how many steps the run has that made step 60" in capsys.readouterr().err
        assert all_files(Path(store.url)) == before

    def test_the_best_by_an_evaluation_stay(
        self, store, steps: list[Manifest], home: Path, call_main: CallMain, capsys
    ):
        call = ("checkpoints", "prune", store.url, "--keep-last", "1", "--keep-best", "loss=1")
        assert call_main(*call) == 2
        assert "has no values for the runs small-abcdef" in capsys.readouterr().err
        record = home / "runs" / steps[0].job_id
        record.mkdir(parents=True)
        events = [
            {"kind": "evaluated", "data": {"step": 10, "name": "loss", "value": 3.0}},
            {"kind": "evaluated", "data": {"step": 20, "name": "loss", "value": 1.0}},
            {"kind": "evaluated", "data": {"step": 30, "name": "other", "value": 0.0}},
            {"kind": "checkpoint", "data": {"step": 30}},
        ]
        lines = [json.dumps(event) for event in events]
        lines += ["5", "null", '{"data": 5}', '{"kind": "evaluated", "data": null}']
        for odd in ({}, {"value": None}, {"value": 0, "step": "x"}, {"value": [0], "step": 10}):
            data = {"step": 10, "name": "loss"} | odd
            lines.append(json.dumps({"kind": "evaluated", "data": data}))
        lines += [lines[0].replace("3.0", "-1" + "0" * 400), "[" * 100_000]
        torn = b'\n{"kind": "evaluated", "text": "\xff"}\n{"torn'
        (record / "events.jsonl").write_bytes("\n".join(lines).encode() + torn)
        (Path(store.url) / "manifests" / store.committed_manifest(30)).write_text("{}")
        assert call_main(*call) == 0
        assert store.committed_steps() == [20, STEP]

    @pytest.mark.parametrize("job_id", ["a\ntrainflow: all is well", "x" * 5000, "a\x00b"])
    def test_a_forged_name_of_a_run_is_spelled_out(
        self, store, home: Path, call_main: CallMain, capsys, job_id: str
    ):
        manifest = save(store, make_job(max_steps=STEP + 1))
        rewrite(store, STEP, job_id=job_id)
        call = ("checkpoints", "prune", store.url, "--keep-last", "1")
        assert call_main(*call) == 6
        assert call_main(*call, "--keep-best", "loss=1") == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 2, manifest.job_id
        assert all(
            line.startswith(f"trainflow: {start}")
            for line, start in zip(said, (store.url, "--keep-best"), strict=True)
        )

    @pytest.mark.usefixtures("steps")
    @pytest.mark.parametrize("best", ["loss", "=1", "loss=0", "loss=x"])
    def test_a_best_that_says_nothing_is_refused(self, store, call_main, capsys, best: str):
        call = ("checkpoints", "prune", store.url, "--keep-last", "1", "--keep-best", best)
        assert call_main(*call) == 2
        assert "as in held_out_loss=2" in capsys.readouterr().err

    @pytest.mark.usefixtures("steps")
    def test_none_can_not_be_asked_for(self, store, call_main: CallMain):
        assert call_main("checkpoints", "prune", store.url, "--keep-last", "0") == 2
        assert call_main("checkpoints", "prune", store.url) == 2
        assert store.committed_steps() == [10, 20, 30, STEP]

    def test_what_comes_after_a_step_goes(self, store, steps, call_main: CallMain):
        kept = steps[1].step
        assert call_main("checkpoints", "rewind", store.url, str(kept + 1)) == 3
        assert call_main("checkpoints", "rewind", store.url, str(kept), "--dry-run") == 0
        assert len(store.committed_steps()) == len(steps)
        assert call_main("checkpoints", "rewind", store.url, str(kept)) == 0
        assert store.committed_steps() == [each.step for each in steps if each.step <= kept]

    def test_to_go_on_from_a_damaged_step_is_refused(self, store, call_main: CallMain, capsys):
        save(store, make_job(), step=20)
        newest = save(store, make_job(width=16), step=STEP)
        damage(store, newest, "/models/model/embed.weight")
        before = all_files(Path(store.url))
        for option in ("--dry-run", "--yes"):
            assert call_main("checkpoints", "rewind", store.url, str(STEP), option) == 1
            said = capsys.readouterr()
            assert "got step 40, which is damaged, expected a whole one to go on from" in said.err
            assert "rewind to step 20" in said.err
            assert "remove" not in said.out
        assert all_files(Path(store.url)) == before

    @pytest.mark.usefixtures("steps")
    @pytest.mark.parametrize("option", ["--dry-run", "--yes"])
    def test_a_folder_in_the_place_of_a_marker_is_named(
        self, store, call_main: CallMain, capsys, option: str
    ):
        (Path(store.url) / "committed" / "000000000060.json").mkdir()
        before = all_files(Path(store.url))
        assert call_main("checkpoints", "prune", store.url, "--keep-last", "1", option) == 1
        said = capsys.readouterr().err
        assert "got a folder committed/000000000060.json, expected a marker" in said
        assert "credentials" not in said
        assert all_files(Path(store.url)) == before

    def test_what_is_damaged_goes_and_the_last_good_one_stays(
        self, store, call_main: CallMain, capsys
    ):
        save(store, make_job(), step=10)
        newest = save(store, make_job(width=16), step=STEP)
        damage(store, newest, "/models/model/embed.weight")
        assert call_main("checkpoints", "prune", store.url, "--keep-last", "1", "--yes") == 0
        said = capsys.readouterr().out
        assert "removed steps 40: " in said
        assert "kept steps 10; damaged: 40" in said
        assert call_main("checkpoints", "verify", store.url) == 0

    @pytest.mark.usefixtures("steps")
    @pytest.mark.parametrize("command", [("prune", "--keep-last", "1"), ("rewind", "10")])
    def test_nothing_goes_beside_one_of_another_release(
        self, store, call_main: CallMain, capsys, command: tuple[str, ...]
    ):
        rewrite(store, 20, version=2)
        before = all_files(Path(store.url))
        name, *rest = command
        for options in (["--yes"], ["--dry-run"]):
            assert call_main("checkpoints", name, store.url, *rest, *options) == 1
            said = capsys.readouterr().err
            assert "nothing is removed: manifest " in said
            assert "got version 2 of the format, expected 1" in said
        assert all_files(Path(store.url)) == before
