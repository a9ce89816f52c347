"""A job with a bit of everything that a state can hold, and a checkpoint of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, SecretStr
from torch import Tensor, nn

from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.sharing import Share, assemble
from trainflow.checkpointing.snapshot import Snapshot, TensorRecord
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.computation.outside_a_run import build_state
from trainflow.computation.session import Session
from trainflow.computation.state_tree import flatten_state
from trainflow.computation.training_state import Committed, TrainingState
from trainflow.computation.weights import bytes_of
from trainflow.config.fingerprint import fingerprint
from trainflow.config.job import JobConfig
from trainflow.epochs import WHOLE, EpochId, Version

STEP = 40


class Args(BaseModel):
    """What a test may change."""

    width: int = 12
    forgets: bool = False
    raises: bool = False
    needs: str = ""
    after: str = ""
    frozen: float = 0.5
    token: SecretStr | None = None


class Net(nn.Module):
    """Tied weights, a frozen one, buffers of several types, of no dimension, without elements."""

    def __init__(self, args: Args):
        super().__init__()
        self.embed = nn.Embedding(7, args.width)
        self.norm = nn.BatchNorm1d(args.width)
        self.brief = nn.Parameter(torch.randn(3, 5).bfloat16())
        self.fixed = nn.Parameter(torch.full((4,), args.frozen), requires_grad=False)
        self.head = nn.Linear(args.width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("codes", torch.arange(6, dtype=torch.int8))
        self.register_buffer("nothing", torch.empty(0, 4))
        self.register_buffer("positions", torch.arange(9.0), persistent=False)


class Average:
    """A state of the user's; ``forgets`` what it is to load, as a careless one might."""

    def __init__(self, args: Args):
        self.forgets = args.forgets
        self.state: dict[str, Any] = {"pair": (torch.zeros(2), 0.25), "best": float("inf")}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        if not self.forgets:
            self.state = dict(state)


def train(session: Session, args: Args) -> None:
    """Never computes: a test builds it as far as the first step."""
    print("what a training function prints is no answer")
    if args.raises:
        raise RuntimeError("no such file: model.bin")
    if args.needs:
        print(f"{args.needs} has {len(os.environ[args.needs])} characters")
    session.prepare(
        lambda: Net(args),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    )
    session.register("average", Average(args))
    for step in session.steps():
        with step:
            raise AssertionError("nothing is to be computed")
    Path(args.after).write_text("what comes after the steps is not to be reached")


def make_samples(args: Args) -> list[dict[str, Tensor]]:
    return [{"x": torch.zeros(1)}] * 8


def make_job(max_steps: int = STEP, **args: Any) -> JobConfig:
    return JobConfig.model_validate(
        {
            "name": "small",
            "entrypoint": "tests.unit.checkpointing.small_job:train",
            "args": args,
            "training": {"max_steps": max_steps, "global_batch_size": 4, "microbatch_size": 2},
            "data": {"dataset": "tests.unit.checkpointing.small_job:make_samples"},
            "workers": {"minimum": 1, "target": 1},
        }
    )


@contextmanager
def trained_state(job: JobConfig) -> Iterator[TrainingState]:
    """Yield a state in which all has moved that training moves."""
    with build_state(job, "small-abcdef") as (state, _):
        model = state.models["model"]
        torch.manual_seed(3)
        for _ in range(2):
            for parameter in model.module.parameters():
                parameter.grad = torch.randn_like(parameter)
            model.optimizer.step()
            assert model.scheduler is not None
            model.scheduler.step()
        for name, buffer in model.module.named_buffers():
            if name != "positions":
                buffer.copy_(torch.randint(0, 9, buffer.shape))
        mine = {"pair": (torch.randn(2), 0.75), "best": float("nan")}
        state.registered["average"].state.load_state_dict(mine)
        state.consumed_samples = 4 * STEP
        state.last_commit = Committed(STEP, True, 0.5, 1.0, 0.1, 3)
        state.version = Version(STEP, EpochId(1, 2))
        yield state


def save(store: CheckpointStore, job: JobConfig, step: int = STEP) -> Manifest:
    """Commit a checkpoint of the trained state of ``job``."""
    with trained_state(job) as state:
        return save_state(state, store, job, step)


def save_state(state: TrainingState, store: CheckpointStore, job: JobConfig, step: int) -> Manifest:
    """Commit a checkpoint of a state."""
    flat = flatten_state(state.tree())
    records = tuple(
        TensorRecord(path, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes)
        for path, t in flat.tensors.items()
    )
    payloads = tuple(map(bytes_of, flat.tensors.values()))
    snapshot = Snapshot(Version(step, EpochId(1, 2)), WHOLE, None, flat.skeleton, records, payloads)
    report = upload_share(snapshot, Share(0, 1), store)
    manifest = Manifest(
        job_id="small-abcdef",
        step=step,
        attempt="1.2",
        created_at_s=1000.0,
        world_size=3,
        fingerprint=fingerprint(job),
        config=job.model_dump(mode="json"),
        skeleton=flat.skeleton,
        tensors=assemble([report]),
    )
    store.commit(manifest)
    return manifest


def damage(store: CheckpointStore, manifest: Manifest, path: str) -> None:
    """Flip a bit of a tensor."""
    chunk = manifest.tensors[path].shards[0].chunks[0]
    file = Path(store.url) / "chunks" / chunk.chunk_id[:2] / chunk.chunk_id
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def all_files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, for before and after."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
