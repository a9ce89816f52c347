"""From live state to a store and back, into another process's state."""

from contextlib import closing
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.checkpointing import small_job
from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.checkpointing.rewriting import rewrite
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.peer_memory import LostMemoryError, UnreachableMemoryError
from trainflow.checkpointing.sharing import Share, assemble
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.communication.aggregation import choose_aggregator
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.outside_a_run import build_state
from trainflow.computation.own_memory import OwnMemory
from trainflow.computation.reports import CheckpointUnusable
from trainflow.computation.restoring import restore, unusable
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import (
    Committed,
    PreparedModel,
    Registered,
    TrainingState,
    _load_optimizer,
)
from trainflow.config.communication import CommunicationConfig
from trainflow.epochs import (
    INITIAL_EPOCH,
    WHOLE,
    EpochId,
    HeldShards,
    HeldState,
    PeerAddress,
    ShardId,
    StoredState,
    Version,
)
from trainflow.errors import (
    CheckpointError,
    CheckpointMisfitError,
    CheckpointVersionError,
    StoreError,
)

STEP = 7


class Counter:
    """A state of the user's."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {"tokens": 0.0, "best": float("inf")}

    def state_dict(self) -> dict[str, float]:
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.seen = dict(state)


def make_state(seed: int, width: int = 8) -> TrainingState:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    module[2].bias.requires_grad_(False)
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([p for _, p in trainable], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    aggregator = choose_aggregator(
        CommunicationConfig(), deterministic=True, device=torch.device("cpu")
    )
    reducer = GradientReducer(trainable, aggregator, 1000)
    model = PreparedModel(module, optimizer, scheduler, reducer)
    return TrainingState({"model": model}, {"counter": Registered(Counter(), None)})


def train(state: TrainingState) -> TrainingState:
    """Move everything that training moves."""
    model = state.models["model"]
    for _ in range(3):
        model.module(torch.randn(5, 8)).sum().backward()
        model.optimizer.step()
        assert model.scheduler is not None
        model.scheduler.step()
        model.optimizer.zero_grad()
    state.registered["counter"].state.load_state_dict({"tokens": 31.0, "best": 0.5})
    state.consumed_samples = 210
    state.last_commit = Committed(STEP, True, 0.5, 1.0, 0.1, 3)
    state.version = Version(STEP, EpochId(1, 2))
    return state


def digest(state: TrainingState) -> str:
    return repr(
        {
            "tree": {key: value for key, value in state.tree().items() if key not in {"models"}},
            "tensors": {
                name: tensor.tolist()
                for model in state.models.values()
                for name, tensor in model.tensors().items()
            },
        }
    )


@pytest.fixture
def stored(tmp_path: Path) -> StoredState:
    """A checkpoint of a trained state."""
    state = train(make_state(seed=1))
    assert state.version is not None
    writer = SnapshotWriter(tmp_path, "w")
    assert writer.write(state.tree(), state.version, Share(0, 1))
    snapshot = Slot(tmp_path / "w.0.snapshot").read()
    assert snapshot is not None
    store = CheckpointStore(str(tmp_path / "store"))
    report = upload_share(snapshot, Share(0, 1), store)
    tensors, skeleton = assemble([report]), snapshot.skeleton
    store.commit(replace(make_manifest(), step=STEP, skeleton=skeleton, tensors=tensors))
    return StoredState(store.url, STEP)


def test_another_process_has_the_whole_state_again(stored: StoredState):
    state = make_state(seed=2)
    chunks_read: list[None] = []
    restore(state, stored, after_each=lambda: chunks_read.append(None))
    torch.manual_seed(1)
    assert digest(state) == digest(train(make_state(seed=1)))
    assert state.version == Version(STEP, INITIAL_EPOCH)
    assert len(chunks_read) > 1


def test_a_restore_goes_through_a_model_equally_often_whatever_it_holds(
    stored: StoredState, monkeypatch: pytest.MonkeyPatch
):
    looks: list[str] = []
    for name in ("tensors", "optimized_parameters"):
        look = getattr(PreparedModel, name)

        def count(model: PreparedModel, name: str = name, look: Any = look) -> Any:
            looks.append(name)
            return look(model)

        monkeypatch.setattr(PreparedModel, name, count)
    restore(make_state(seed=2), stored, after_each=lambda: None)
    # Of what is live, of which part is whose, and of where it is put.
    assert sorted(looks) == ["optimized_parameters", *["tensors"] * 3]


def test_training_goes_on_alike(stored: StoredState):
    restored, kept = make_state(seed=2), train(make_state(seed=1))
    restore(restored, stored, after_each=lambda: None)
    for state in (restored, kept):
        torch.manual_seed(9)
        train(state)
    assert digest(restored) == digest(kept)


def test_a_state_that_was_trained_further_is_turned_back(stored: StoredState):
    state = train(train(make_state(seed=1)))
    restore(state, stored, after_each=lambda: None)
    assert digest(state) == digest(train(make_state(seed=1)))


def test_a_flipped_bit_is_found_and_leaves_no_whole_state(stored: StoredState):
    path = max(Path(stored.url).glob("chunks/*/*"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[3] ^= 16
    path.write_bytes(data)
    state = train(make_state(seed=2))
    with pytest.raises(CheckpointError, match=r"expected \d+ that hash to its name"):
        restore(state, stored, after_each=lambda: None)
    assert state.version is None


def test_the_checkpoint_of_another_model_is_refused(stored: StoredState):
    with pytest.raises(CheckpointMisfitError, match="is whole, and can't be loaded here"):
        restore(make_state(seed=2, width=9), stored, after_each=lambda: None)


def test_one_of_another_release_ends_the_run_and_is_not_reported_as_unusable(tmp_path: Path):
    store, job = CheckpointStore(str(tmp_path)), small_job.make_job()
    small_job.save(store, job)
    rewrite(store, small_job.STEP, version=2)
    with (
        pytest.raises(CheckpointVersionError, match="another release of TrainFlow"),
        build_state(job, "small-abcdef", StoredState(store.url, small_job.STEP)),
    ):
        pass


def test_a_store_that_does_not_answer_is_asked_again(
    stored: StoredState, monkeypatch: pytest.MonkeyPatch
):
    silences = [3]
    read_manifest = CheckpointStore.read_manifest

    def read_if_up(*args: Any) -> Any:
        if silences[0]:
            silences[0] -= 1
            raise StoreError("503")
        return read_manifest(*args)

    monkeypatch.setattr(CheckpointStore, "read_manifest", read_if_up)
    told: list[float | None] = []
    clock: Any = SimpleNamespace(sleep=told.append)
    state = make_state(seed=2)
    restore(state, stored, after_each=lambda: told.append(None), clock=clock)
    assert state.version == stored.version
    naps = [None, 1.0, None, None, 2.0, None, None, 4.0, None]
    assert told[: len(naps)] == naps, "each answer, or none, is progress, and so is a pause"
    silences[0] = 99
    with pytest.raises(StoreError, match="503"):
        restore(state, stored, after_each=lambda: None, clock=clock)


def test_a_keeper_killed_in_mid_read_is_told_from_damage_and_read_from_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = train(make_state(seed=1))
    assert kept.version is not None
    assert SnapshotWriter(tmp_path, "w").write(kept.tree(), kept.version, None)
    naps_s: list[float] = []
    clock: Any = SimpleNamespace(sleep=naps_s.append, monotonic_s=lambda: sum(naps_s))
    state = make_state(seed=2)

    def die(server: SnapshotServer, *_: Any) -> None:
        server.close()
        raise ConnectionAbortedError("as if its process had been killed")

    with closing(SnapshotServer(HeldSnapshots(tmp_path), "job-1", "127.0.0.1")) as first:
        held = HeldState(kept.version, (first.address,))
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotServer, "_send_part", die)
            with pytest.raises(UnreachableMemoryError) as caught:
                restore(state, held, after_each=lambda: None, clock=clock)
    assert state.version is None
    text = str(caught.value)
    assert unusable(held, caught.value) == CheckpointUnusable(held, text, (first.address,))
    assert unusable(held, CheckpointError("damaged")) == CheckpointUnusable(held, "damaged", ())
    with closing(SnapshotServer(HeldSnapshots(tmp_path), "job-1", "127.0.0.1")) as second:
        assert second.address != first.address
        again = HeldState(kept.version, (second.address,))
        restore(state, again, after_each=lambda: None, clock=clock)
    assert digest(state) == digest(kept)


@pytest.fixture
def kept(tmp_path: Path) -> TrainingState:
    """A trained state, of which there is a snapshot in a folder of its own."""
    state = train(make_state(seed=1))
    assert state.version is not None
    assert SnapshotWriter(tmp_path / "memory", "w").write(state.tree(), state.version, None)
    return state


NOWHERE = PeerAddress("10.0.0.1", 1, "of this node, where no Keeper listens")


def test_what_this_node_has_is_read_without_a_keeper(kept: TrainingState, tmp_path: Path):
    state = make_state(seed=2)
    assert kept.version is not None
    held = HeldState(kept.version, (NOWHERE,))
    own = OwnMemory(tmp_path / "memory", NOWHERE.host)
    read: list[None] = []
    restore(state, held, after_each=lambda: read.append(None), own_memory=own)
    assert digest(state) == digest(kept)
    assert state.version == kept.version
    assert read, "who reads says that it gets on"
    assert SnapshotWriter(tmp_path / "memory", "w", num_slots=1).write(
        state.tree(), kept.version, None
    ), "nobody reads it any more"


@pytest.mark.parametrize("is_bad", [True, False])
def test_what_is_bad_or_gone_here_is_read_elsewhere(
    kept: TrainingState, tmp_path: Path, *, is_bad: bool
):
    assert kept.version is not None
    own = OwnMemory(tmp_path / "own", NOWHERE.host)
    if is_bad:  # found out before: then it is not among the sources
        other = train(make_state(seed=3))
        assert SnapshotWriter(own.folder, "w").write(other.tree(), kept.version, None)
    state = make_state(seed=2)
    with closing(
        SnapshotServer(HeldSnapshots(tmp_path / "memory"), "job-1", "127.0.0.1")
    ) as server:
        held = HeldState(kept.version, (server.address,) if is_bad else (server.address, NOWHERE))
        restore(state, held, after_each=lambda: None, own_memory=own)
    assert digest(state) == digest(kept)


def test_a_shard_that_is_not_here_is_not_taken_for_another(kept: TrainingState, tmp_path: Path):
    assert kept.version is not None
    own = OwnMemory(tmp_path / "memory", NOWHERE.host)
    shards = tuple(HeldState(kept.version, (NOWHERE,), ShardId(k, 2)) for k in range(2))
    with own.reading(HeldShards(kept.version, shards), ShardId(1, 2)) as found:
        assert found is None
    with own.reading(StoredState("/store", STEP), WHOLE) as found:
        assert found is None


def test_of_shards_those_are_named_that_were_looked_for_in_vain():
    version = Version(3, INITIAL_EPOCH)
    sources = [PeerAddress("127.0.0.1", port, "token") for port in (1, 2)]
    shards = [HeldState(version, (each,), ShardId(k, 2)) for k, each in enumerate(sources)]
    stored = HeldShards(version, tuple(shards))
    gone = UnreachableMemoryError("no answer", shards[1], (sources[1],))
    one = HeldShards(version, (shards[1],))
    for error in (gone, copy(gone)):
        assert unusable(stored, error) == CheckpointUnusable(one, "no answer", (sources[1],))
    damaged = LostMemoryError("damaged", shards[1])
    assert unusable(stored, damaged) == CheckpointUnusable(one, "damaged")
    misfits = CheckpointError("they make no state")
    assert unusable(stored, misfits) == CheckpointUnusable(stored, "they make no state")


def test_an_optimizers_moments_lie_with_their_parameters_again():
    # Of a device that isn't the CPU: a checkpoint is read into memory of the CPU.
    optimizer = torch.optim.AdamW([nn.Parameter(torch.empty(3, device="meta"))])
    moments = {"step": torch.tensor(2.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    groups = [{"lr": 0.5}]
    _load_optimizer(optimizer, {"state": {"0": moments}, "groups": groups})
    (state,) = optimizer.state.values()
    assert {key: tensor.device.type for key, tensor in state.items()} == {
        "step": "cpu",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }
    optimizer.param_groups[0]["fused"] = optimizer.defaults["fused"] = True
    optimizer.state.clear()
    _load_optimizer(optimizer, {"state": {"0": moments}, "groups": groups})
    (state,) = optimizer.state.values()
    assert state["step"].device.type == "meta"
