"""Where each worker of a run is reached, written down once it is warm: ``workers.jsonl``.

A coordinator that comes back asks its workers for all that it needs. One that is slow to answer can
be watched meanwhile, and be a member of the next epoch, by what it had said to the one before.

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
Fails: never; what can't be written waits, and of whom nothing is known nothing is told.
"""

from pathlib import Path

from trainflow.coordination.line_file import LineFile
from trainflow.coordination.messages import WorkerDescription

_LAUNCHED = {"launched": True}
_KEYS = ("worker_id", "node_id", "node_labels", "pid", "host", "store_port", "presence_port")


class WorkerContacts:
    """What warm workers have said of themselves that doesn't change."""

    def __init__(self, path: Path):
        self._file = LineFile(path)
        self._known: dict[str, WorkerDescription] = {}
        for line in self._file.read():
            if line == _LAUNCHED:
                self._known.clear()
            elif line.keys() == set(_KEYS):
                self._known[line["worker_id"]] = WorkerDescription(**line, ready=True)

    def begin(self) -> None:
        """Forget all: workers are launched from nothing, under names that were used before."""
        self._known.clear()
        self._file.append(_LAUNCHED)

    def note(self, description: WorkerDescription) -> None:
        """A worker is warm."""
        line = {key: getattr(description, key) for key in _KEYS}
        contact = WorkerDescription(**line, ready=True)
        if self.find(contact.worker_id) != contact:
            self._known[contact.worker_id] = contact
            self._file.append(line)

    def find(self, worker_id: str) -> WorkerDescription | None:
        """Return how a worker is reached, as it has said itself; None if it never was warm."""
        return self._known.get(worker_id)
