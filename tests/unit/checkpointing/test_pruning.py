"""What a policy makes of a folder, from outside a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.pruning import plan_prune
from trainflow.checkpointing.retention import RetentionPolicy
from trainflow.checkpointing.sharing import assemble
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.errors import CheckpointError, StoreError

STEPS = (10, 20, 30, 40)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Checkpoints that share one tensor of 35 bytes, and have one of their own."""
    store = CheckpointStore(str(tmp_path / "store"))
    for step in STEPS:
        reports = upload(make_snapshot(35, step), store, 1)
        manifest = replace(
            make_manifest(),
            step=step,
            skeleton=reports[0].skeleton,
            tensors=assemble(reports),
            config={"training": {"max_steps": 40}},
        )
        store.commit(manifest)
    return store


def damage(store: CheckpointStore, step: int) -> None:
    chunk = store.read_manifest(step).tensors["/t1"].shards[0].chunks[-1]
    path = Path(store.url) / "chunks" / chunk.chunk_id[:2] / chunk.chunk_id
    path.write_bytes(path.read_bytes()[:-1])


def test_what_goes_is_counted_without_what_others_need(store: CheckpointStore):
    plan = plan_prune(store, RetentionPolicy(keep_last=2), {})
    assert (plan.kept, plan.going, plan.damaged) == ((30, 40), (10, 20), ())
    assert (plan.num_chunks, plan.num_bytes) == (2, 30)
    assert store.committed_steps() == list(STEPS), "nothing was removed"
    collect(store, plan.kept)
    assert not verify(store, 30).flaws
    assert not verify(store, 40).flaws


def test_every_nth_and_the_best_stay_too(store: CheckpointStore):
    policy = RetentionPolicy(keep_last=1, keep_every=20, keep_best=1)
    assert plan_prune(store, policy, {10: 0.1, 30: 0.5}).kept == (10, 20, 40)


def test_the_newest_good_one_stays_and_damaged_ones_after_it_go(store: CheckpointStore):
    damage(store, 40)
    (Path(store.url) / "manifests" / store.committed_manifest(30)).write_text("{}")
    plan = plan_prune(store, RetentionPolicy(keep_last=1), {})
    assert (plan.kept, plan.going, plan.damaged) == ((20,), (10, 30, 40), (30, 40))
    collect(store, plan.kept)
    assert not verify(store, 20).flaws


def test_where_nothing_is_whole_nothing_goes(store: CheckpointStore):
    for step in STEPS:
        damage(store, step)
    with pytest.raises(CheckpointError, match="4 checkpoints, none of them whole, expected"):
        plan_prune(store, RetentionPolicy(keep_last=1), {})


def test_what_comes_after_a_step_goes(store: CheckpointStore):
    everything = RetentionPolicy(keep_last=99)
    plan = plan_prune(store, everything, {}, after=25)
    assert (plan.kept, plan.going, plan.damaged) == ((10, 20), (30, 40), ())
    damage(store, 20)
    plan = plan_prune(store, everything, {}, after=25)
    assert (plan.kept, plan.going, plan.damaged) == ((10,), (20, 30, 40), (20,))


def test_nothing_goes_if_nothing_whole_would_be_left_up_to_the_step(store: CheckpointStore):
    with pytest.raises(CheckpointError, match="0 checkpoints up to step 5, none of them whole"):
        plan_prune(store, RetentionPolicy(keep_last=99), {}, after=5)


def test_an_empty_folder_has_nothing_to_lose(tmp_path: Path):
    plan = plan_prune(CheckpointStore(str(tmp_path)), RetentionPolicy(), {})
    assert (plan.kept, plan.going, plan.writer) == ((), (), None)


def test_a_run_may_be_writing_its_first_checkpoint(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    upload(make_snapshot(35), store, 1)
    assert "writing its first" in str(plan_prune(store, RetentionPolicy(), {}).writer)
    for name in ("manifests/000000000010-a-b.json", "chunks/00/.part-a"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")
        plan = plan_prune(CheckpointStore(str(folder)), RetentionPolicy(), {})
        assert "writing its first" in str(plan.writer), name


@pytest.mark.parametrize("part", ["manifest", "marker"])
def test_what_the_run_of_a_damaged_newest_one_is_at_is_not_known(store: CheckpointStore, part: str):
    newest = replace(store.read_manifest(40), step=60, config={"training": {"max_steps": 100}})
    store.commit(newest)
    name = f"manifests/{store.committed_manifest(60)}"
    path = Path(store.url) / ("committed/000000000060.json" if part == "marker" else name)
    path.write_bytes(path.read_bytes()[:-10])
    plan = plan_prune(store, RetentionPolicy(keep_last=1), {})
    assert (plan.kept, plan.damaged) == ((40,), (60,))
    assert "how many steps the run has that made step 60" in str(plan.writer)


def test_a_folder_in_the_place_of_a_marker_is_named(store: CheckpointStore):
    (Path(store.url) / "committed" / "000000000050.json").mkdir()
    with pytest.raises(
        CheckpointError, match=r"got a folder committed/0{10}50.json, expected a ma"
    ) as caught:
        plan_prune(store, RetentionPolicy(), {})
    assert not isinstance(caught.value, StoreError)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"training": {"max_steps": 40}}, None),
        ({"training": {"max_steps": 50}}, "has 50 steps, and is at 40"),
        ({}, "is not known"),
        ({"training": []}, "is not known"),
    ],
)
def test_a_run_writes_there_until_its_last_step(store: CheckpointStore, config, said):
    newest = store.read_manifest(40)
    store.remove_marker(40)
    store.commit(replace(newest, config=config, attempt="again"))
    writer = plan_prune(store, RetentionPolicy(), {}).writer
    assert writer is None if said is None else said in str(writer)
