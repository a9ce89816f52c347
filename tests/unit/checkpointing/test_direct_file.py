"""Files written past the page cache where that is possible, and whole in any case."""

import errno
import fcntl
import mmap
import os

import pytest

from trainflow.checkpointing import direct_file
from trainflow.checkpointing.direct_file import BLOCK_BYTES, write_flushed


def write(path, data):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        write_flushed(descriptor, data)
    finally:
        os.close(descriptor)
    return path.read_bytes()


def is_direct(descriptor):
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def make_aligned(num_bytes):
    """Memory that begins at a page, as a slot's payload does."""
    memory = mmap.mmap(-1, num_bytes)
    memory[:] = os.urandom(num_bytes)
    return memoryview(memory)


@pytest.mark.parametrize("num_bytes", [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 17])
def test_every_length_is_written_whole(tmp_path, num_bytes):
    data = make_aligned(max(num_bytes, 1))[:num_bytes]
    assert write(tmp_path / "file", data) == bytes(data)


def test_memory_that_is_not_aligned_is_written_too(tmp_path):
    data = make_aligned(4 * BLOCK_BYTES)[3 : 3 + 2 * BLOCK_BYTES]
    assert write(tmp_path / "file", data) == bytes(data)


def test_whole_blocks_go_past_the_cache_and_the_rest_does_not(tmp_path, monkeypatch):
    writes = []
    real = os.write

    def spy(descriptor, data):
        writes.append((len(data), is_direct(descriptor)))
        return real(descriptor, data)

    monkeypatch.setattr(direct_file.os, "write", spy)
    data = make_aligned(2 * BLOCK_BYTES + 5)
    assert write(tmp_path / "file", data) == bytes(data)
    if (2 * BLOCK_BYTES + 5, False) in writes:
        pytest.skip("this file system has no direct writes")
    assert writes == [(2 * BLOCK_BYTES, True), (5, False)]


def test_what_was_written_before_a_refusal_is_not_written_again(tmp_path, monkeypatch):
    real = os.write

    def refuse_after_a_block(descriptor, data):
        if is_direct(descriptor) and len(data) < 3 * BLOCK_BYTES:
            raise OSError(errno.EINVAL, "not aligned")
        return real(descriptor, data[:BLOCK_BYTES])

    monkeypatch.setattr(direct_file.os, "write", refuse_after_a_block)
    data = make_aligned(3 * BLOCK_BYTES)
    assert write(tmp_path / "file", data) == bytes(data)


def test_other_errors_are_told(tmp_path, monkeypatch):
    def fill_up(descriptor, data):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(direct_file.os, "write", fill_up)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "file", make_aligned(BLOCK_BYTES))
