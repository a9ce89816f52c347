"""The training that is saved: a Transformer with AdamW's moments, and a step of a fixed length.

A step computes (products of matrices, as many as asked for), meets the other ranks, and updates
every parameter and moment, so that each save finds all of them changed.

Process: every rank, and the harness.
"""

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from trainflow.checkpointing.chunks import name_of
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.state_tree import flatten_state, unflatten_state

WIDTH = 640
VOCABULARY_SIZE = 4096
FULL_LAYERS = 8  # 42M parameters: 500 MB with both moments
QUICK_LAYERS = 1
_PRODUCT_SIZE = 512

Tree = dict[str, Any]


def build_model(num_layers: int) -> nn.Module:
    """Build an embedding and ``num_layers`` layers with the same weights on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 10, 4 * WIDTH, batch_first=True)
            for _ in range(num_layers)
        ]
        return nn.ModuleDict(
            {"embedding": nn.Embedding(VOCABULARY_SIZE, WIDTH), "layers": nn.ModuleList(layers)}
        )


class Training:
    """One rank's state, and the steps that change it."""

    def __init__(self, num_layers: int):
        self.model = build_model(num_layers)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4, fused=True)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self._factors = torch.randn(2, _PRODUCT_SIZE, _PRODUCT_SIZE, generator=generator)
        self._product = torch.empty(_PRODUCT_SIZE, _PRODUCT_SIZE)
        self._scale = 1.0
        self.update(0)

    def tree(self) -> Tree:
        """Return the state as users hand it to a saver."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self, number: int, num_products: int, guard: AbstractContextManager[Any]) -> None:
        """Run a step; ``guard`` is held while the state changes."""
        self.compute(num_products)
        dist.all_reduce(self._product[0])
        with guard:
            self.update(number)

    def compute(self, num_products: int) -> None:
        """Multiply matrices."""
        for _ in range(num_products):
            torch.mm(self._factors[0], self._factors[1], out=self._product)

    def update(self, number: int) -> None:
        """Update every parameter and moment, by other gradients for each step."""
        scale = random.Random(number).uniform(0.5, 2.0)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(scale / self._scale)
        self._scale = scale
        self.optimizer.step()


def zeros_like(tree: Tree) -> Tree:
    """Return a tree of the same shape, with touched memory of its own."""
    flat = flatten_state(tree)
    return unflatten_state(flat.skeleton, [torch.zeros_like(t) for t in flat.tensors.values()])


def tensors_of(tree: Tree) -> dict[str, Tensor]:
    """Return the tensors by path."""
    return flatten_state(tree).tensors


def num_bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())


def digest_of(tree: Tree) -> str:
    """Return a hash of every tensor's path and bytes."""
    names = [
        f"{path} {name_of(as_bytes(tensor).numpy().data)}"
        for path, tensor in sorted(tensors_of(tree).items())
    ]
    return name_of("\n".join(names).encode())


def as_bytes(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as bytes."""
    return tensor.view(-1).view(torch.uint8)


def copy_time_s(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> float:
    """Copy every tensor once; returns the seconds."""
    start_s = SYSTEM_CLOCK.monotonic_s()
    for path, tensor in source.items():
        target[path].copy_(tensor)
    return SYSTEM_CLOCK.monotonic_s() - start_s
