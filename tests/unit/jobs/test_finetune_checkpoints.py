"""What a checkpoint of the LoRA job costs: the adapters and their moments, and little beside."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from jobs import finetune_lm, pretrain_lm
from jobs.export import export_model
from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import Share, assemble
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.communication.aggregation import RingSum
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import PreparedModel, TrainingState
from trainflow.data.token_corpus import TokenCorpus
from trainflow.epochs import EpochId, Version

# peft asks transformers for a property by its former name.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

MOST = 1.2  # times the trainable state
EVERY_STEPS = 2
NUM_CHECKPOINTS = 4


@pytest.fixture
def state(corpus: TokenCorpus, tmp_path: Path) -> TrainingState:
    """The job's model at its own size."""
    torch.manual_seed(3)
    export_model(pretrain_lm.build_model(pretrain_lm.Args(), corpus), corpus, tmp_path / "base")
    args = finetune_lm.Args(base_model=tmp_path / "base")
    model = finetune_lm.build_model(args)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = AdamW([p for _, p in trainable], lr=args.lr, weight_decay=0.0)
    reducer = GradientReducer(trainable, RingSum(), 2**20)
    return TrainingState({"model": PreparedModel(model, optimizer, None, reducer)})


def train(state: TrainingState, corpus: TokenCorpus) -> Iterator[Version]:
    """Train; yields after each step that is to be kept."""
    model = state.models["model"]
    for step in range(EVERY_STEPS * NUM_CHECKPOINTS):
        tokens = torch.randint(0, 200, (2, corpus.sequence_length))
        model.module(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        state.consumed_samples += len(tokens)
        if step % EVERY_STEPS == EVERY_STEPS - 1:
            yield Version(step, EpochId(1, 1))


def trainable_bytes(state: TrainingState) -> int:
    """Return the size of what training changes: the adapters, and what the optimizer keeps."""
    optimizer = state.models["model"].optimizer
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [v for values in optimizer.state.values() for v in values.values()]
    return sum(t.nbytes for t in (*trained, *moments) if isinstance(t, Tensor))


def num_bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_each_checkpoint_writes_little_more_than_what_is_trained(
    state: TrainingState, corpus: TokenCorpus, tmp_path: Path
):
    node, folder = tmp_path / "node", tmp_path / "store"
    node.mkdir()
    held, store = HeldSnapshots(node), CheckpointStore(str(folder))
    writers = [SnapshotWriter(node, f"w{rank}") for rank in range(2)]
    written: list[int] = []
    for version in train(state, corpus):
        before = num_bytes_in(folder) if folder.exists() else 0
        for rank, writer in enumerate(writers):
            assert writer.write(state.tree(), version, Share(rank, len(writers)))
        reports = []
        for slot, snapshot in held.find_ready():
            reports.append(upload_share(snapshot, Share(*snapshot.purpose["share"]), store))
            slot.hold()
        skeleton, tensors = reports[0].skeleton, assemble(reports)
        store.commit(
            replace(make_manifest(), step=version.step, skeleton=skeleton, tensors=tensors)
        )
        written.append(num_bytes_in(folder) - before)
    model = state.models["model"].module
    assert trainable_bytes(state) < sum(p.nbytes for p in model.parameters()) / 5
    assert len(written) == NUM_CHECKPOINTS
    assert max(written) <= MOST * trainable_bytes(state), "frozen weights, or much beside them"
