"""Stamps of workers that were killed, and a folder that stands for a machine's shared memory."""

import struct
from pathlib import Path

import pytest

from trainflow.computation.stamps import StampWriter
from trainflow.coordination import names


def stand_in_for_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a folder stand for what this user has in /dev/shm; returns it."""
    monkeypatch.setattr(names, "memory_directory", lambda: root)
    return root


def leave_stamp(folder: Path, pid: int, pulse_at_s: float | None = None) -> Path:
    """Leave a stamp behind as a worker of that pid does when it is killed; returns its file."""
    writer = StampWriter(folder / "of-this-process.stamp")
    data = bytearray((folder / "of-this-process.stamp").read_bytes())
    writer.close()
    struct.pack_into("=q", data, 0, pid)
    if pulse_at_s is not None:
        struct.pack_into("=d", data, 7 * 8, pulse_at_s)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "slot0-1.0.stamp"
    path.write_bytes(data)
    return path
