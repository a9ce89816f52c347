"""What must be so in a snapshot that no hash vouches for, before it is believed.

A snapshot that travels is described by a manifest, which is checked when it is read. One that is
read where it lies is only what its writer left, or what became of that.

Pure.
"""

from math import prod

from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.checkpointing.json_document import FlawError, tell
from trainflow.checkpointing.skeleton import check_skeleton
from trainflow.checkpointing.snapshot import Snapshot, TensorRecord
from trainflow.errors import StateError


def check_snapshot(snapshot: Snapshot) -> None:
    """Require that what describes a snapshot is whole, and goes with its bytes.

    Raises:
        StateError: a tensor has no such type or another size, is there twice, or the skeleton
            names others.
    """
    try:
        _check_tensors(snapshot)
        check_skeleton(snapshot.skeleton, len(snapshot.tensors))
    except FlawError as flaw:
        raise StateError(
            f"the snapshot of {snapshot.version}: {flaw.where}: got {flaw.got}, expected "
            f"{flaw.expected}; it is damaged"
        ) from None


def _check_tensors(snapshot: Snapshot) -> None:
    paths: set[str] = set()
    for record, payload in zip(snapshot.tensors, snapshot.payloads, strict=True):
        if record.path in paths:
            raise FlawError(record.path, "a tensor twice", "each once")
        paths.add(record.path)
        _check_tensor(record, len(payload))


def _check_tensor(record: TensorRecord, num_bytes: int) -> None:
    if record.dtype not in ITEM_BYTES:
        raise FlawError(record.path, tell(record.dtype), f"one of {', '.join(ITEM_BYTES)}")
    if any(side < 0 for side in record.shape):
        raise FlawError(record.path, f"the shape {tell(record.shape)}", "sides of at least 0")
    expected = prod(record.shape) * ITEM_BYTES[record.dtype]
    if not expected == record.num_bytes == num_bytes:
        got = f"{tell(record.num_bytes)} bytes, of which {num_bytes} are there"
        raise FlawError(record.path, got, f"{tell(expected)}")
