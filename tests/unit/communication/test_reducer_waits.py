"""Which tensors a rank says that it waits for."""

import torch
from torch import nn

from trainflow.communication.aggregation import RingSum
from trainflow.communication.reducer import GradientReducer
from trainflow.communication.rehearsal import rehearsal_group

SIZE = 128


def test_who_waits_for_sums_tells_whose_and_at_last_that_none_are_left():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 3))
    told: list[str] = []
    reducer = GradientReducer(
        list(model.named_parameters()), RingSum(), bucket_bytes=1000, on_wait=told.append
    )
    reducer.begin(rehearsal_group(2, 1))
    reducer.arm()
    model(torch.ones(1, SIZE)).sum().backward()
    assert told == [], "backward waits for nobody"
    assert reducer.finish() is not None
    assert told == ["1.weight", "0.weight", "2.bias and 3 more", ""]
