"""Give a rank the state that its peers have.

A source sends one JSON description, then all small tensors in one piece, then each large tensor
by itself, straight out of and into the memory it lives in. All of it goes in messages of a bounded
size, after each of which both sides show that they get on.

Process: every rank of an epoch that lacks, or was chosen to send, the base version.
Thread: training, parked between steps.  Blocks: until sent or received.
Fails: returns False when the group breaks; the receiver then has no live state until healed again.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainflow.communication.group import Group, wait_all
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import RecoveryPlan

_PACK_BELOW_BYTES = 64 * 1024
_MESSAGE_BYTES = 16 * 1024 * 1024

AfterEach = Callable[[], None]


def heal(
    state: TrainingState,
    plan: RecoveryPlan,
    group: Group,
    device: torch.device,
    *,
    after_each: AfterEach,
) -> bool:
    """Bring every member to ``plan.base``; True when this rank's part is done.

    ``after_each`` is called after each message that was sent or received.
    """
    if group.rank in plan.sources:
        return _receive_state(state, plan, group, device, after_each)
    sent = True
    for target, sender in sorted(plan.sources.items()):
        if sender == group.rank:
            messages = _describe_state(state, device)
            pending = [group.send(part, target) for message in messages for part in _split(message)]
            sent = wait_all(pending, after_each) and sent
    return sent


def _describe_state(state: TrainingState, device: torch.device) -> list[Tensor]:
    """Return what is sent, in order: the description's length, itself, small tensors, large."""
    flat = flatten_state(state.tree())
    described = [
        [path, str(t.dtype).removeprefix("torch."), list(t.shape)]
        for path, t in flat.tensors.items()
    ]
    text = json.dumps({"skeleton": flat.skeleton, "tensors": described}).encode()
    small = [t for t in flat.tensors.values() if _is_small(t)]
    packed = torch.cat([_as_bytes(t.to(device)) for t in small]) if small else None
    return [
        torch.tensor([len(text)], dtype=torch.int64, device=device),
        torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device),
        *([] if packed is None else [packed]),
        *[t.to(device).contiguous() for t in flat.tensors.values() if not _is_small(t)],
    ]


def _receive_state(
    state: TrainingState,
    plan: RecoveryPlan,
    group: Group,
    device: torch.device,
    after_each: AfterEach,
) -> bool:
    def receive(*messages: Tensor) -> bool:
        source = plan.sources[group.rank]
        pending = [group.recv(part, source) for message in messages for part in _split(message)]
        return wait_all(pending, after_each)

    size = torch.zeros(1, dtype=torch.int64, device=device)
    if not receive(size):
        return False
    text = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    if not receive(text):
        return False
    state.begin_overwrite()
    message: dict[str, Any] = json.loads(text.cpu().numpy().tobytes())
    own = flatten_state(state.tree()).tensors
    tensors = [
        _landing_place(own.get(path), dtype, shape, device)
        for path, dtype, shape in message["tensors"]
    ]
    small = [t for t in tensors if _is_small(t)]
    packed = torch.empty(sum(t.nbytes for t in small), dtype=torch.uint8, device=device)
    if not receive(*([packed] if small else []), *[t for t in tensors if not _is_small(t)]):
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


def _split(message: Tensor) -> Sequence[Tensor]:
    """Return views of a contiguous tensor's bytes, each small enough for one message."""
    return _as_bytes(message).split(_MESSAGE_BYTES)


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes < _PACK_BELOW_BYTES


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
