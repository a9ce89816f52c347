"""The model, the data and the training functions that the tests run.

Process: every rank, and the test itself for what plain torch makes of it.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from trainflow.computation.session import Session
from trainflow.computation.step import Step
from trainflow.data.batch import Batch

WIDTH = 160  # a square matrix of it is too large for the tail bucket


class Samples:
    """Samples whose content follows from their index."""

    def __init__(self, size: int):
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitems__(self, indices: list[int], /) -> dict[str, Tensor]:
        position = torch.tensor(indices, dtype=torch.float32)[:, None]
        x = torch.sin(position * torch.arange(1, 9) * 0.37)
        return {"x": x, "y": x.sum(1, keepdim=True).cos(), "index": torch.tensor(indices)}


class Net(nn.Module):
    """Three buckets and a tail, random numbers in forward, and a buffer that forward changes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Dropout(0.1),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 1),
        )
        self.register_buffer("num_forwards", torch.zeros((), dtype=torch.int64))
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        if self.training:
            self.num_forwards += 1
        return self.body(x)


class Average:
    """An exponential moving average of the first weight, and how often it was updated."""

    def __init__(self, weight: Tensor):
        self._weight = weight
        self.mean = weight.detach().clone()
        self.num_updates = 0

    def update(self) -> None:
        self.mean.lerp_(self._weight.detach(), 0.1)
        self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.mean.copy_(state["mean"])
        self.num_updates = state["num_updates"]


def make_optimizer(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=0.01)


def make_scheduler(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1.0 / (1 + step))


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch.inputs["x"]), batch.inputs["y"])


def digest(*tensors: Tensor) -> str:
    """Tell whether tensors are equal bit for bit."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def state_digest(model: nn.Module, optimizer: AdamW) -> str:
    """Cover everything that a rank must share with its peers."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return digest(*model.parameters(), *moments)


class Recorder:
    """Builds the model in a session and collects what a test asks about."""

    def __init__(self, session: Session, model: Callable[[], nn.Module] = Net):
        self.optimizers: list[AdamW] = []
        self.commits: dict[int, Any] = {}
        self.tails: list[int] = []
        self.tries: list[tuple[int, int]] = []

        def keep_optimizer(parameters: Any) -> AdamW:
            self.optimizers.append(make_optimizer(parameters))
            return self.optimizers[0]

        self.model = session.prepare(model, keep_optimizer, make_scheduler)
        self.average = Average(next(self.model.parameters()))
        session.register("average", self.average, on_commit=self.average.update)

    def commit(self, step: Step) -> None:
        done = step.commit()
        self.commits[done.number] = done
        self.tails.append(done.number)

    def result(self) -> dict[str, Any]:
        return {
            "digest": state_digest(self.model, self.optimizers[0]),
            "parameters": [p.detach().clone() for p in self.model.parameters()],
            "average": digest(self.average.mean),
            "num_updates": self.average.num_updates,
            "num_forwards": int(self.model.num_forwards) if isinstance(self.model, Net) else 0,
            "num_calls": self.model.num_calls if isinstance(self.model, Net) else 0,
            "commits": self.commits,
            "tails": self.tails,
            "tries": self.tries,
        }


def train(session: Session, _: Any = None) -> dict[str, Any]:
    """The plain loop."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            run.tries.append((step.number, step.retry))
            for batch in step.microbatches():
                step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
            run.commit(step)
    return run.result()
