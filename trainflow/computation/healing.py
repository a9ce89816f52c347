"""Give a rank the state that its peers have.

A source sends one JSON description, then all small tensors in one message, then each large tensor
by itself, straight out of and into the memory it lives in.

Process: every rank of an epoch that lacks, or was chosen to send, the base version.
Thread: training, parked between steps.  Blocks: until sent or received.
Fails: returns False when the group breaks; the receiver then has no live state until healed again.
"""

import json
from typing import Any

import torch
from torch import Tensor

from trainflow.communication.group import Group, wait_all
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import RecoveryPlan

_PACK_BELOW_BYTES = 64 * 1024


def heal(state: TrainingState, plan: RecoveryPlan, group: Group, device: torch.device) -> bool:
    """Bring every member to ``plan.base``; True when this rank's part is done."""
    source = plan.sources.get(group.rank)
    if source is not None:
        return _receive_state(state, plan, group, device)
    sent = True
    for target, sender in sorted(plan.sources.items()):
        if sender == group.rank:
            sent = _send_state(state, group, target, device) and sent
    return sent


def _send_state(state: TrainingState, group: Group, target: int, device: torch.device) -> bool:
    flat = flatten_state(state.tree())
    described = [
        [path, str(t.dtype).removeprefix("torch."), list(t.shape)]
        for path, t in flat.tensors.items()
    ]
    text = json.dumps({"skeleton": flat.skeleton, "tensors": described}).encode()
    small = [t for t in flat.tensors.values() if _is_small(t)]
    packed = torch.cat([_as_bytes(t.to(device)) for t in small]) if small else None
    messages = [
        torch.tensor([len(text)], dtype=torch.int64, device=device),
        torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device),
        *([] if packed is None else [packed]),
        *[t.to(device).contiguous() for t in flat.tensors.values() if not _is_small(t)],
    ]
    return wait_all([group.send(message, target) for message in messages])


def _receive_state(
    state: TrainingState, plan: RecoveryPlan, group: Group, device: torch.device
) -> bool:
    source = plan.sources[group.rank]
    size = torch.zeros(1, dtype=torch.int64, device=device)
    if not group.recv(size, source).wait():
        return False
    text = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    if not group.recv(text, source).wait():
        return False
    state.version = None  # from here on live tensors are overwritten
    message: dict[str, Any] = json.loads(text.cpu().numpy().tobytes())
    own = flatten_state(state.tree()).tensors
    tensors = [
        _landing_place(own.get(path), dtype, shape, device)
        for path, dtype, shape in message["tensors"]
    ]
    small = [t for t in tensors if _is_small(t)]
    packed = torch.empty(sum(t.nbytes for t in small), dtype=torch.uint8, device=device)
    pending = [group.recv(packed, source)] if small else []
    pending += [group.recv(t, source) for t in tensors if not _is_small(t)]
    if not wait_all(pending):
        return False
    for tensor, part in zip(small, packed.split([t.nbytes for t in small]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
    state.load_tree(unflatten_state(message["skeleton"], tensors), plan.base)
    return True


def _landing_place(
    own: Tensor | None, dtype_name: str, shape: list[int], device: torch.device
) -> Tensor:
    """Return the live tensor if the incoming one can be received into it, else fresh memory."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    fits = (
        own is not None and own.dtype == dtype and list(own.shape) == shape and own.is_contiguous()
    )
    if own is not None and fits and (own.device == device or own.nbytes < _PACK_BELOW_BYTES):
        return own
    return torch.empty(shape, dtype=dtype, device=device)


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes < _PACK_BELOW_BYTES


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
