"""A run of a state's bytes is changed, across its tensors."""

import torch

from benchmarks.checkpoint_increments import change_contiguous


def test_a_run_from_the_middle_on_is_changed_whatever_tensors_it_crosses():
    tensors = [torch.zeros(10), torch.zeros(0), torch.zeros(2, 5)]
    assert change_contiguous(tensors, 0.25) == 20
    changed = torch.cat([t.view(-1).view(torch.uint8) for t in tensors]).nonzero().flatten()
    assert changed.tolist() == list(range(40, 60))


def test_a_run_crosses_from_one_tensor_to_the_next():
    tensors = [torch.zeros(12), torch.zeros(8)]
    change_contiguous(tensors, 0.5)
    assert [int(t.view(torch.uint8).count_nonzero()) for t in tensors] == [8, 32]
