"""The smallest of jobs: a line is fitted to points. Run by tests, as a user's own job would be."""

from typing import Any

import torch
from pydantic import BaseModel
from torch import nn
from torch.optim import SGD

from trainflow import Session

NUM_POINTS = 64


class Args(BaseModel):
    raise_in_step: int | None = None
    """Step in which the training function raises; null is never."""


class Points:
    """Points on a line, made when they are read."""

    def __len__(self) -> int:
        return NUM_POINTS

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        x = torch.tensor([index / NUM_POINTS])
        return {"x": x, "y": 2 * x + 1}


def make_points(args: Args) -> Points:
    return Points()


def train(session: Session, args: Args) -> None:
    print("the line is about to be fitted")
    model = session.prepare(lambda: nn.Linear(1, 1), lambda parameters: SGD(parameters, lr=0.1))
    for step in session.steps():
        with step:
            if step.number == args.raise_in_step:
                raise ValueError(f"the job gives up in step {step.number}")
            for batch in step.microbatches():
                error = model(batch.inputs["x"]) - batch.inputs["y"]
                step.backward(error.square().mean(), weight=batch.num_targets)
            step.commit()
