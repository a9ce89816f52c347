"""What compression has left out of one rank's sums, in shared memory, which outlives the rank.

A file holds one place of a worker: 4096 bytes of header, then all its residuals, fp32. The worker
alone writes; a field says whether the whole is there, and is cleared before anything changes. So
whoever finds the file of a dead worker has either all of what it left or nothing.

    0    magic, whole, the seven numbers of a `PartId`, number of elements, the two numbers of the
         newest epoch that the worker took part in: 8 bytes each
    4096 residuals

Process: worker writes, Keeper reads what dead ones have left.  Thread: training.  Blocks: never.
"""

import mmap
import os
import struct
from dataclasses import astuple, dataclass
from pathlib import Path

from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError

SUFFIX = ".residual"
_MAGIC = int.from_bytes(b"TFresid1", "little")
_HEADER = struct.Struct("=12q")
_WHOLE, _PART, _SIZE, _EPOCH = 1, 2, 9, 10
_PAGE = 4096
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class PartId:
    """One rank's part of the residuals of all ranks.

    Attributes:
        version: of the state that they go with.
        dealt: the epoch in which they were dealt out anew, in equal shares; the initial one if they
            are as the step left them.
        world_size: number of parts.
        rank: which of them.
    """

    version: Version
    dealt: EpochId
    world_size: int
    rank: int

    def pack(self) -> tuple[int, ...]:
        """Return it as seven integers."""
        (step, epoch), dealt = astuple(self.version), astuple(self.dealt)
        return (step, *epoch, *dealt, self.world_size, self.rank)

    @classmethod
    def unpack(cls, numbers: tuple[int, ...]) -> "PartId":
        """Return what `pack` packed."""
        step, incarnation, counter, dealt_incarnation, dealt_counter, world_size, rank = numbers
        version = Version(step, EpochId(incarnation, counter))
        return cls(version, EpochId(dealt_incarnation, dealt_counter), world_size, rank)


class ResidualFile:
    """The writer's side of one file; new ones are zero and not whole.

    Attributes:
        payload: the residuals' bytes.

    Raises:
        StateError: no room for it; says what to change.
    """

    def __init__(self, path: Path, num_elements: int):
        size = _PAGE + num_elements * _FLOAT_BYTES
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            whole = memoryview(mmap.mmap(descriptor, size))
        except OSError as error:
            path.unlink()
            raise StateError(
                f"error feedback: got {error.strerror} in {path.parent}, expected room for two "
                f"files of {size} bytes a worker; enlarge /dev/shm (--shm-size of a container), or "
                "set communication.error_feedback to false"
            ) from error
        finally:
            os.close(descriptor)
        self._fields = whole[: _HEADER.size].cast("q")
        self.payload = whole[_PAGE:]
        self._fields[0], self._fields[_SIZE] = _MAGIC, num_elements

    def enter(self, epoch: EpochId) -> None:
        """The worker takes part in an epoch."""
        self._fields[_EPOCH], self._fields[_EPOCH + 1] = epoch.incarnation, epoch.counter

    def clear(self) -> None:
        """What is there counts no more."""
        self._fields[_WHOLE] = 0

    def complete(self, part: PartId) -> None:
        """What is there now is this part."""
        for index, number in enumerate(part.pack()):
            self._fields[_PART + index] = number
        self._fields[_WHOLE] = 1


@dataclass(frozen=True)
class LeftPart:
    """A part that was found.

    Attributes:
        part: which.
        path: the file it lies in.
        num_elements: that it has.
        epoch: the newest that its worker took part in.
    """

    part: PartId
    path: Path
    num_elements: int
    epoch: EpochId


def find_part(path: Path) -> LeftPart | None:
    """Read a file's header; None if it holds nothing whole, or is gone."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER.size)
            num_bytes = os.fstat(file.fileno()).st_size - _PAGE
    except FileNotFoundError:
        return None
    if len(data) < _HEADER.size:
        return None
    magic, whole, *numbers, num_elements, incarnation, counter = _HEADER.unpack(data)
    if magic != _MAGIC or not whole or num_bytes != num_elements * _FLOAT_BYTES:
        return None
    part = PartId.unpack(tuple(numbers))
    return LeftPart(part, path, num_elements, EpochId(incarnation, counter))


def read_part(left: LeftPart) -> memoryview:
    """Map a part's bytes.

    Raises:
        StateError: the file holds another one by now, or is gone.
    """
    try:
        descriptor = os.open(left.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise StateError(f"{left.path}: got no file, expected {left.part}") from error
    try:
        whole = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
    if find_part(left.path) != left:
        raise StateError(f"{left.path}: got another part, expected {left.part}")
    return whole[_PAGE:]
