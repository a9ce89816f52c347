"""Snapshots as workers leave them, for tests."""

from pathlib import Path

from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.epochs import EpochId, Version

SIZES = (5_000_000, 0, 7)
SKELETON = {"dict": [[str(k), {"tensor": k}] for k in range(len(SIZES))]}


def version(step: int) -> Version:
    return Version(step, EpochId(1, 1))


def payload(step: int, index: int) -> bytes:
    return bytes((step + index + k) % 251 for k in range(251)) * (SIZES[index] // 251 + 1)


def leave(
    folder: Path, owner: str, step: int, number: int = 0, *, for_storage: bool = False
) -> Slot:
    """Leave a whole snapshot in one of a living worker's slots."""
    slot = Slot(folder / f"{owner}.{number}.snapshot")
    (folder / f"{owner}.stamp").touch()
    records = [TensorRecord(f"/{k}", "uint8", (size,), size) for k, size in enumerate(SIZES)]
    assert slot.take()
    purpose = {"share": [0, 1]} if for_storage else None
    for index, view in enumerate(slot.begin(version(step), SKELETON, records, purpose)):
        view[:] = payload(step, index)[: len(view)]
    slot.complete(for_storage=for_storage)
    return slot
