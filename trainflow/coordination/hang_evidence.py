"""Where every rank stood when a hang was judged, kept with the run's record.

Process: coordinator.  Thread: its event loop.  Blocks: for a local write.
Fails: never; what can't be had is missing, and the event says why.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.stack_dumps import StackDump
from trainflow.coordination.standstill import OwnCode, describe_places, find_place, parse_stacks

logger = logging.getLogger(__name__)

_WITHIN_S = 1.0
_FILES_KEPT = 20
_MAX_FILE_BYTES = 8 * 1024 * 1024
_FOLDER = "stacks"
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Evidence:
    """What is kept with an event.

    Attributes:
        text: where the ranks stand, in words.
        files: with the stacks, by their paths in the run's folder; none if they can't be written.
    """

    text: str
    files: tuple[str, ...] = ()


class HangEvidence:
    """Asks the Keepers for the stacks of their workers, and keeps those of the newest hangs."""

    def __init__(self, nodes: NodeWatch, record: RunRecord, entrypoint: str):
        """Keep files beside the record; ``entrypoint`` tells which code is the job's own."""
        self._nodes = nodes
        self._record = record
        self._own = OwnCode(_PACKAGE, entrypoint.partition(":")[0].partition(".")[0])

    async def gather(self, members: Sequence[str], hung: Sequence[str] = ()) -> Evidence:
        """Have all of them write their stacks; returns within a second, whoever doesn't answer.

        Args:
            members: worker ids by rank.
            hung: who is to blame; not all of them need be members.
        """
        try:
            return await self._gather(members, hung)
        except Exception as error:  # evidence is worth no recovery
            logger.exception("no stacks could be had")
            return Evidence(f"no stacks could be had ({type(error).__name__}: {error})")

    def add_event(
        self,
        kind: str,
        text: str,
        evidence: Evidence | None = None,
        **data: Any,  # noqa: ANN401  JSON
    ) -> None:
        """Record what was judged, with what there is to show for it, if that was gathered."""
        if evidence is None:
            self._record.add_event(kind, text, **data)
            return
        whole = f"{text}. {evidence.text}"
        self._record.add_event(kind, whole, **data, stacks=list(evidence.files))

    async def _gather(self, members: Sequence[str], hung: Sequence[str]) -> Evidence:
        ranks = {worker_id: rank for rank, worker_id in enumerate(members)}
        asked = list(dict.fromkeys([*hung, *members]))
        dumps = await self._nodes.ask_stacks(asked, _WITHIN_S)
        places = {worker_id: self._tell(dumps.get(worker_id)) for worker_id in asked}
        sections = [
            _write_section(worker_id, ranks.get(worker_id), dumps[worker_id])
            for worker_id in asked
            if worker_id in dumps
        ]
        text = describe_places(places, ranks)
        try:
            return Evidence(text, (self._keep("\n".join(sections)),))
        except OSError as error:
            return Evidence(f"{text} (the stacks can't be kept: {error})")

    def _tell(self, dump: StackDump | None) -> str:
        """Return where a worker stands, or why that isn't known."""
        if dump is None:
            return f"its Keeper has not told within {_WITHIN_S:.1f} s"
        if dump.trouble:
            return dump.trouble
        frames = parse_stacks(dump.text).get(dump.training_thread, ())
        place = find_place(frames, self._own) or "its training thread is not in its stacks"
        return f"{place}, for {dump.awaited}" if dump.awaited else place

    def _keep(self, text: str) -> str:
        """Write a file, and remove the oldest of many; returns its path in the run's folder."""
        folder = self._record.directory / _FOLDER
        folder.mkdir(exist_ok=True)
        numbers = sorted(int(path.stem) for path in folder.glob("*.txt") if path.stem.isdecimal())
        path = folder / f"{numbers[-1] + 1 if numbers else 1}.txt"
        try:
            path.write_bytes(text.encode(errors="replace")[:_MAX_FILE_BYTES])
        except OSError:
            path.unlink(missing_ok=True)
            raise
        for number in numbers[: 1 - _FILES_KEPT]:
            (folder / f"{number}.txt").unlink(missing_ok=True)
        return f"{_FOLDER}/{path.name}"


def _write_section(worker_id: str, rank: int | None, dump: StackDump) -> str:
    who = f"{worker_id}, no member" if rank is None else f"{worker_id}, rank {rank}"
    heading = f"=== {who}, process {dump.pid}"
    if dump.trouble:
        return f"{heading}: {dump.trouble}\n"
    training = (
        f"training thread 0x{dump.training_thread:016x}" if dump.training_thread else "starts"
    )
    return f"{heading}, {training}\n\n{dump.text}"
