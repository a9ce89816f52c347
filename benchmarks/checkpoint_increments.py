"""How much TrainFlow writes for a checkpoint of a state of which little has changed.

Process: the harness.  What a Keeper does in the background is done here, one snapshot at a time.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.checkpoint_keeper import LocalDesk, add_node, make_service
from benchmarks.checkpoint_state import (
    WIDTH,
    Training,
    Tree,
    as_bytes,
    build_model,
    num_bytes_of,
    tensors_of,
)
from benchmarks.report import Row
from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.epochs import INITIAL_EPOCH, Version

CHANGED_FRACTION = 0.05
_WORKER = "rank0"
_LORA_RANK = 8
_LORA_ADAPTERS_A_LAYER = 4
_NUM_LORA_CHECKPOINTS = 4


class Store:
    """A store that checkpoints are brought to, and what each of them added."""

    def __init__(self, folder: Path, node: Path):
        self._folder = folder
        url = folder.as_uri()
        add_node(node, _WORKER)
        self._writer = SnapshotWriter(node, _WORKER)
        self._service = make_service(node, url, LocalDesk(url))
        self._checkpoints = CheckpointStore(url)
        self._step = 0

    def save(self, tree: Tree) -> int:
        """Save a state; returns the bytes by which the store's files have grown."""
        before = self._num_bytes()
        self._step += 1
        version = Version(self._step, INITIAL_EPOCH)
        if not self._writer.write(tree, version, Share(0, 1)):
            raise RuntimeError(f"step {self._step}: got no snapshot: {self._writer.trouble}")
        self._service.work_once()
        if self._step not in self._checkpoints.committed_steps():
            raise RuntimeError(f"step {self._step}: got no checkpoint, expected one")
        return self._num_bytes() - before

    def _num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())


def change_contiguous(tensors: list[Tensor], fraction: float) -> int:
    """Change a run of the state's bytes, from its middle on; returns how many were changed."""
    total = sum(tensor.nbytes for tensor in tensors)
    skipped, left = total // 2, round(total * fraction)
    changed = left
    for tensor in tensors:
        own = as_bytes(tensor)
        start = min(skipped, own.numel())
        stop = min(start + left, own.numel())
        own[start:stop] ^= 1
        skipped -= start
        left -= stop - start
    return changed - left


def measure_contiguous(folder: Path, node: Path, num_layers: int) -> list[Row]:
    """Return what the second checkpoint writes after a run of bytes has changed."""
    tree = Training(num_layers).tree()
    tensors = tensors_of(tree)
    store = Store(folder, node)
    store.save(tree)
    with torch.no_grad():
        change_contiguous(list(tensors.values()), CHANGED_FRACTION)
    fraction = store.save(tree) / num_bytes_of(tensors)
    return [Row("trainflow", "written_fraction", fraction, "1")]


def measure_lora(folder: Path, node: Path, num_layers: int) -> list[Row]:
    """Return the most that a checkpoint after the first writes, over its trainable state."""
    base, adapters = build_model(num_layers).requires_grad_(False), make_adapters(num_layers)
    optimizer = AdamW(adapters.parameters(), lr=1e-3)
    store = Store(folder, node)
    written: list[int] = []
    for _ in range(_NUM_LORA_CHECKPOINTS):
        for parameter in adapters.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        model = base.state_dict() | adapters.state_dict(prefix="adapters.")
        written.append(store.save({"model": model, "optimizer": optimizer.state_dict()}))
    trained = {"model": adapters.state_dict(), "optimizer": optimizer.state_dict()}
    num_trained = num_bytes_of(tensors_of(trained))
    return [
        Row("trainflow_lora", "written_fraction", max(written[1:]) / num_trained, "1"),
        Row("trainflow_lora", "trainable_bytes", num_trained, "bytes"),
    ]


def make_adapters(num_layers: int) -> nn.ParameterList:
    """Make the trainable parameters of low-rank adapters."""
    shapes = [(_LORA_RANK, WIDTH), (WIDTH, _LORA_RANK)] * (_LORA_ADAPTERS_A_LAYER * num_layers)
    return nn.ParameterList([nn.Parameter(torch.randn(shape) * 0.01) for shape in shapes])
