"""Comparing runs from the command line, by records of runs that never ran."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.cli.conftest import CallMain
from tests.unit.coordination.past_runs import record_run
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.manifest import Chunk, Shard, TensorEntry
from trainflow.checkpointing.store import CheckpointStore
from trainflow.cli.determinism_commands import _MEANINGS
from trainflow.cli.preflight import read_job
from trainflow.coordination import replay as replaying
from trainflow.coordination.bisection import History
from trainflow.coordination.replay import Replayed, ReplayPlan

DIGESTS = {step: f"{step:016x}" for step in range(1, 13)}
PARTED = {step: digest if step < 5 else f"f{digest[1:]}" for step, digest in DIGESTS.items()}
TENSORS = {"/gradients/model/w": "1", "/models/model/w": "2", "/models/model/b": "3"}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def settings(store: CheckpointStore) -> dict[str, Any]:
    checkpoint = {"url": store.url}
    return {"world": 2, "checkpoint": checkpoint, "training": {"deterministic": True}}


def save(store: CheckpointStore, step: int, job_id: str, **tensors: str) -> None:
    """Commit a checkpoint whose tensors have these characters in the names of their chunks."""
    entries = {
        path: TensorEntry("float32", (2,), (Shard(whole((2,)), (Chunk(each * 32, 8),)),))
        for path, each in tensors.items()
    }
    config = make_job(world=2, training={"deterministic": True}).model_dump(mode="json")
    manifest = make_manifest(**entries)
    store.commit(replace(manifest, step=step, job_id=job_id, config=config))


class TestBisect:
    def test_runs_that_are_the_same_are_said_to_be(self, home: Path, call_main: CallMain, capsys):
        job = make_job()
        record_run(home, "a", job, DIGESTS, tensors={4: TENSORS})
        folder = record_run(home, "b", job, {**DIGESTS, 13: "d"}, tensors={4: TENSORS}).directory
        assert call_main("bisect", "a", folder) == 0
        assert capsys.readouterr().out == "the same in all 12 steps they share (steps 1 to 12)\n"
        assert call_main("bisect", "a", "b", "-o", "json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["runs"], answer["same"], answer["num_shared"]) == (["a", "b"], True, 12)

    def test_what_of_their_code_differs_is_told(self, home: Path, call_main: CallMain, capsys):
        job = make_job()
        for name, digests, code in (("a", DIGESTS, "0"), ("b", PARTED, "1")):
            path = record_run(home, name, job, digests).directory / "job.json"
            recorded = json.loads(path.read_text())
            recorded["versions"]["torch"], recorded["code"] = f"1.{code}", code * 32
            path.write_text(json.dumps(recorded))
        assert call_main("bisect", "a", "b", "-o", "json") == 1
        said = capsys.readouterr()
        told = json.loads(said.out)["other_code"]
        place = job.entrypoint
        assert told == [
            "torch was 1.0 in a and 1.1 in b",
            f"the file with {place} was another in a than in b",
        ]
        assert [f"note: {each}" in said.err for each in told] == [True, True]
        assert "training.deterministic is false in a" in said.err
        assert call_main("bisect", "a", "a", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["other_code"] == []

    def test_tensors_that_are_kept_in_other_parts_are_not_compared(
        self, home: Path, tmp_path: Path, call_main: CallMain, capsys
    ):
        others = {20: DIGESTS[1]}
        for job_id, num_parts, digests in (
            ("a", 1, DIGESTS),
            ("b", 2, DIGESTS),
            ("c", 2, PARTED),
            ("d", 1, others),
        ):
            store = CheckpointStore(str(tmp_path / f"store-{job_id}"))
            record_run(home, job_id, make_job(checkpoint={"url": store.url}), digests)
            size = 2 // num_parts
            parts = [Box((at,), (size,)) for at in range(0, 2, size)]
            shards = tuple(Shard(each, (Chunk(job_id * 32, 4 * size),)) for each in parts)
            manifest = make_manifest(cut=TensorEntry("float32", (2,), shards))
            store.commit(replace(manifest, step=4, job_id=job_id))
        assert call_main("bisect", "a", "b") == 0
        note = "checkpoints of step 4 hold tensors in other parts: those aren't compared"
        assert note in capsys.readouterr().err
        assert call_main("bisect", "b", "c", "-o", "json") == 1
        told = capsys.readouterr()
        assert note not in told.err
        answer = json.loads(told.out)
        assert (answer["first_tensor"], answer["tensors"]["differing"]) == ("cut", ["cut"])
        assert call_main("bisect", "b", "d") == 2
        assert note in capsys.readouterr().err, "that is why there is nothing to compare"

    def test_where_they_part_is_told_with_the_first_tensor(
        self, home: Path, call_main: CallMain, capsys
    ):
        job, other = make_job(), TENSORS | {"/models/model/w": "x", "/models/model/b": "y"}
        record_run(home, "a", job, DIGESTS, tensors={4: TENSORS, 8: TENSORS})
        record_run(home, "b", job, PARTED, tensors={4: TENSORS, 8: other})
        assert call_main("bisect", "a", "b") == 1
        assert capsys.readouterr().out.splitlines() == [
            "they part at step 5, of the 12 steps they share (steps 1 to 12)",
            "gradients of step 5: 0000000000000005 and f000000000000005",
            "loss of step 5: 0.625 and 0.625",
            "2 of 3 tensors differ after step 8, by the records; the first:",
            "  /models/model/w",
            "  /models/model/b",
        ]
        assert call_main("bisect", "a", "b", "-o", "json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert (answer["same"], answer["first_step"], answer["digest_step"]) == (False, 5, 5)
        assert answer["first_tensor"] == "/models/model/w"
        assert answer["tensors"] == {
            "step": 8,
            "source": "digests",
            "differing": ["/models/model/w", "/models/model/b"],
            "num_compared": 3,
        }

    def test_checkpoints_name_a_tensor_where_records_don_t(
        self, home: Path, tmp_path: Path, call_main: CallMain, capsys
    ):
        for job_id, digests, chunk in (("a", DIGESTS, "0"), ("b", PARTED, "1")):
            store = CheckpointStore(str(tmp_path / f"store-{job_id}"))
            record_run(home, job_id, make_job(checkpoint={"url": store.url}), digests)
            save(store, 4, job_id, w="0", m="0")
            save(store, 8, job_id, w="0", m=chunk)
            save(store, 3, "of-another", w=chunk)
        assert call_main("bisect", "a", "b", "-o", "json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert (answer["first_step"], answer["first_tensor"]) == (5, "m")
        assert (answer["tensors"]["step"], answer["tensors"]["source"]) == (8, "checkpoint")

    def test_what_no_record_has_is_said_to_be_lacking(
        self, home: Path, call_main: CallMain, capsys
    ):
        record_run(home, "a", make_job(), DIGESTS)
        record_run(home, "b", make_job(), PARTED)
        assert call_main("bisect", "a", "b") == 1
        assert "see monitoring.digest_every_steps" in capsys.readouterr().out

    def test_other_settings_are_refused_by_name_unless_they_are_accepted(
        self, home: Path, call_main: CallMain, capsys
    ):
        record_run(home, "a", make_job(), DIGESTS)
        record_run(home, "b", make_job(training={"seed": 6}, world=2), PARTED)
        assert call_main("bisect", "a", "b") == 2
        said = capsys.readouterr().err
        assert "training.seed: '5' and '6'; workers.target: '3' and '2'" in said
        accept = ["--accept", "training.seed", "--accept", "workers.target"]
        assert " ".join(accept) in said
        assert call_main("bisect", "a", "b", *accept[:2]) == 2
        assert "training.seed" not in capsys.readouterr().err
        assert call_main("bisect", "a", "b", *accept) == 1

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("training.sed", "write training.seed, or leave it out"),
            ("checkpoint.url", "leave it out"),
        ],
    )
    def test_a_name_that_accepts_nothing_is_refused(
        self, name: str, change: str, home: Path, call_main: CallMain, capsys
    ):
        for each in ("a", "b"):
            record_run(home, each, make_job(), DIGESTS)
        assert call_main("bisect", "a", "b", "--accept", name) == 2
        said = capsys.readouterr().err
        assert f"--accept: got '{name}'" in said
        assert said.endswith(f"; {change}\n")

    def test_worlds_of_other_sizes_are_told_as_the_reason(
        self, home: Path, call_main: CallMain, capsys
    ):
        record_run(home, "a", make_job(), DIGESTS)
        record_run(home, "b", make_job(), PARTED, worlds=dict.fromkeys(range(5, 13), 1))
        assert call_main("bisect", "a", "b") == 1
        assert "no fault: from step 5 on they had 2 and 1 ranks" in capsys.readouterr().out

    def test_runs_that_share_nothing_are_refused(self, home: Path, call_main: CallMain, capsys):
        record_run(home, "a", make_job(), {1: "a", 2: "b"})
        record_run(home, "b", make_job(), {1: None, 3: "c"})
        assert call_main("bisect", "a", "b") == 2
        assert "(a has steps 1 to 2 and b has step 3)" in capsys.readouterr().err

    @pytest.fixture
    def keep(self, home: Path, tmp_path: Path) -> Callable[..., None]:
        """Record a run without digests, with checkpoints of which these have another tensor."""

        def keep(job_id: str, *, parted: Sequence[int] = (), steps: Sequence[int] = (4, 8)) -> None:
            store = CheckpointStore(str(tmp_path / f"store-{job_id}"))
            job = make_job(checkpoint={"url": store.url})
            record_run(home, job_id, job, dict.fromkeys(range(1, 13)))
            for step in steps:
                save(store, step, job_id, w="0", m="1" if step in parted else "0")

        return keep

    def test_without_digests_checkpoints_tell_that_runs_are_the_same(
        self, keep: Callable[..., None], call_main: CallMain, capsys
    ):
        keep("a")
        keep("b", steps=(4, 8, 12))
        assert call_main("bisect", "a", "b") == 0
        said = capsys.readouterr().out.splitlines()
        assert said[:2] == [
            "the same after all of the 2 steps after which tensors could be compared (steps 4 to "
            "8)",
            "of steps between nothing is known: they share none with a digest (a has none and b "
            "has none)",
        ]
        assert "training.deterministic" in said[2]
        assert call_main("bisect", "a", "b", "-o", "json") == 0
        answer = json.loads(capsys.readouterr().out)
        told = (answer["same"], answer["last_same_step"], answer["tensor_steps"])
        assert told == (True, 8, [4, 8])

    @pytest.mark.parametrize(
        ("parted", "place", "last_same"),
        [((8,), "in one of steps 5 to 8", 4), ((4, 8), "by step 4", None)],
    )
    def test_without_digests_checkpoints_tell_between_which_steps_runs_part(
        self,
        keep: Callable[..., None],
        call_main: CallMain,
        capsys,
        parted: tuple[int, ...],
        place: str,
        last_same: int | None,
    ):
        keep("a")
        keep("b", parted=parted)
        assert call_main("bisect", "a", "b") == 1
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith(f"they part {place}, by the 2 steps after which tensors could be")
        assert "monitoring.digest_every_steps" in said[2]
        assert said[3:] == [
            f"1 of 2 tensors differ after step {parted[0]}, by the checkpoints; the first:",
            "  m",
        ]
        assert call_main("bisect", "a", "b", "-o", "json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert (answer["first_step"], answer["last_same_step"]) == (parted[0], last_same)
        assert (answer["digest_step"], answer["num_shared"]) == (None, 0)

    def test_a_step_without_a_digest_is_not_said_to_be_the_same(
        self, home: Path, call_main: CallMain, capsys
    ):
        record_run(home, "a", make_job(), DIGESTS)
        record_run(home, "b", make_job(), {**PARTED, 4: None})
        assert call_main("bisect", "a", "b") == 1
        assert "they part in one of steps 4 to 5, of the 11 steps" in capsys.readouterr().out

    def test_a_checkpoint_that_can_t_be_read_is_named(
        self, keep: Callable[..., None], tmp_path: Path, call_main: CallMain, capsys
    ):
        keep("a")
        keep("b")
        for manifest in (tmp_path / "store-b" / "manifests").iterdir():
            manifest.write_text("damaged")
        assert call_main("bisect", "a", "b") == 2
        said = capsys.readouterr().err
        assert "note: the checkpoint of step 4 is left out: " in said
        assert "no checkpoint of the same step in the same parts, expected one of these" in said

    def test_a_run_that_is_not_there_is_not_found(self, home: Path, call_main: CallMain, capsys):
        record_run(home, "a", make_job(), DIGESTS)
        assert call_main("bisect", "a", "b") == 3
        assert "got 'b'" in capsys.readouterr().err


class TestReplay:
    @pytest.fixture
    def plans(self, monkeypatch: pytest.MonkeyPatch) -> list[ReplayPlan]:
        """Do steps again by looking them up; from the eighth on another way."""
        plans: list[ReplayPlan] = []

        def run_replay(plan: ReplayPlan, **_: Any) -> Replayed:
            plans.append(plan)
            digests = {n: DIGESTS[n] if n < 8 else "other" for n in plan.steps}
            return Replayed(History(digests, {}), {n: n / 8 for n in plan.steps})

        monkeypatch.setattr(replaying, "run_replay", run_replay)
        return plans

    @pytest.fixture
    def recorded(self, home: Path, store: CheckpointStore, settings: dict[str, Any]) -> Path:
        for step in (4, 6):
            save(store, step, "a")
        return record_run(home, "a", make_job(**settings), DIGESTS).directory

    def test_the_same_digests_are_shown_beside_each_other(
        self,
        recorded: Path,
        plans: list[ReplayPlan],
        store: CheckpointStore,
        call_main: CallMain,
        capsys,
    ):
        assert call_main("replay", "a", "--step", "7") == 0
        said = capsys.readouterr()
        assert said.out.splitlines() == [
            "STEP  RECORDED          REPLAYED          SAME",
            "7     0000000000000007  0000000000000007  yes",
            f"step 7 of a, from the checkpoint of step 6 in {store.url}: the same",
        ]
        assert said.err == ""

    def test_what_differs_is_told_and_leaves_with_1(
        self, recorded: Path, plans: list[ReplayPlan], call_main: CallMain, capsys
    ):
        assert call_main("replay", recorded, "--step", "9", "--from", "4", "-o", "json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert (answer["run"], answer["same"], answer["first_step"]) == ("a", False, 8)
        assert answer["base"]["step"] == 4
        assert [row["same"] for row in answer["steps"]] == ["yes", "yes", "yes", "NO", "NO"]
        assert answer["steps"][0]["replayed_loss"] == answer["steps"][0]["recorded_loss"] == 0.625
        assert call_main("replay", recorded, "--step", "9") == 1
        assert "NOT the same from step 8 on" in capsys.readouterr().out

    def test_what_has_changed_since_is_noted(
        self, recorded: Path, plans: list[ReplayPlan], call_main: CallMain, capsys
    ):
        job = json.loads((recorded / "job.json").read_text())
        job["versions"]["torch"], job["code"] = "1.0", "0" * 32
        job["config"]["training"]["deterministic"] = False
        job["import_paths"] = [str(Path(__file__).parents[3])]
        job["config"]["checkpoint"]["accept"] = ["training.deterministic"]
        (recorded / "job.json").write_text(json.dumps(job))
        assert call_main("replay", "a", "--step", "7") == 0
        notes = capsys.readouterr().err
        assert "since the run torch has changed from 1.0 to" in notes
        assert "the file with tests.distributed.training:train has changed" in notes
        assert "training.deterministic is false" in notes

    def test_a_job_file_stands_for_its_newest_run(
        self, home: Path, plans: list[ReplayPlan], job_file: Path, call_main: CallMain, capsys
    ):
        record_run(home, "tiny-a", read_job(job_file), DIGESTS)
        assert call_main("replay", job_file, "--step", "3", "--from", "0") == 0
        assert plans[0].run.job.job_id == "tiny-a"
        assert plans[0].run.job.config["args"] == {"lr": 0.5}, "with its defaults"
        job_file.write_text(job_file.read_text() + "args: {lr: 0.25}\n")
        assert call_main("replay", job_file, "--step", "3", "--from", "0") == 2
        assert "args.lr: '0.5' and '0.25'" in capsys.readouterr().err

    def test_a_job_file_with_settings_stands_for_a_run_that_was_started_with_them(
        self, home: Path, plans: list[ReplayPlan], job_file: Path, call_main: CallMain, capsys
    ):
        record_run(home, "tiny-a", read_job(job_file, ["args.lr=0.25"]), DIGESTS)
        arguments = ("--step", "3", "--from", "0")
        assert call_main("replay", job_file, *arguments) == 2
        assert call_main("replay", job_file, *arguments, "--set", "args.lr=0.25") == 0
        assert plans[0].run.job.job_id == "tiny-a"
        capsys.readouterr()
        assert call_main("replay", "tiny-a", *arguments, "--set", "args.lr=0.25") == 2
        assert "--set: got 'args.lr=0.25' with the run tiny-a" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["b", "--step", "7"], 3),
            (["a", "--step", "3"], 3),
            (["a", "--step", "70"], 2),
            (["a", "--step", "0"], 2),
            (["a"], 2),
            (["a", "--step", "7", "--timeout-s", "nan"], 2),
        ],
    )
    def test_what_can_t_be_done_leaves_with_a_code_of_its_own(
        self,
        recorded: Path,
        plans: list[ReplayPlan],
        call_main: CallMain,
        arguments: list[str],
        code: int,
    ):
        assert call_main("replay", *arguments) == code
        assert plans == []


@pytest.mark.parametrize("command", ["replay", "bisect"])
def test_the_exit_codes_are_in_the_help(command: str, call_main: CallMain, capsys):
    assert call_main(command, "--help") == 0
    text = capsys.readouterr().out
    assert len(_MEANINGS) == 4
    assert all(f"  {code:>3}  {meaning}" in text for code, meaning in _MEANINGS.items())
