"""What a run's record has no room for yet: it is kept in memory and tried again; losses are told.

Process: coordinator, or who ends a run that has none.  Thread: its event loop.  Blocks: for local
appends.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from trainflow.coordination import ending_file
from trainflow.coordination.line_file import LineFile
from trainflow.coordination.run_state import Ending

logger = logging.getLogger(__name__)

INCOMPLETE = "record_incomplete"


class Unwritten:
    """What of one record waits to be written."""

    def __init__(
        self, directory: Path, files: Sequence[LineFile], tell: Callable[[str, str], None]
    ):
        """Take the record's files of lines, and what adds an event of a kind and a text."""
        self._directory = directory
        self._files = files
        self._tell = tell
        self._ending: tuple[str, Ending, float] | None = None
        self._is_told = False

    def write_ending(self, job_id: str, ending: Ending, at_s: float) -> None:
        """Write how the run ended; whole or not at all, and then it waits."""
        self._ending = job_id, ending, at_s
        self.note(self._flush_ending())

    def flush(self) -> bool:
        """Write what waits; returns whether all is written, also that it is."""
        tries = [*(file.flush() for file in self._files), self._flush_ending()]
        self.note(next((error for error in tries if error is not None), None))
        return not self._list_waiting()

    def note(self, error: OSError | None) -> None:
        """Say once that the files can't be written, and once that they can again."""
        if error is not None and not self._is_told:
            self._is_told = True
            text = f"{self._directory} can't be written ({error}); free some space there: until"
            self._tell("record_unwritable", f"{text} then what happens is kept in memory only")
        elif self._is_told and not self._list_waiting():
            self._is_told = False
            self._tell("record_writable", f"{self._directory} can be written again")
            self._tell_dropped()

    def tell_lost(self, others: Sequence[str] = ()) -> None:
        """Say what is lost since nobody waits any longer for room, and which other files are."""
        lost = ", ".join([*self._list_waiting(), *others])
        text = f"{self._directory} has not taken all that was to be written: {lost}; that is lost"
        logger.error(text)
        self._tell(INCOMPLETE, text)

    def _tell_dropped(self) -> None:
        for file in self._files:
            number, file.num_dropped = file.num_dropped, 0
            if number:
                text = f"{number} lines of {file.name} are lost: too many had to wait for room"
                self._tell(INCOMPLETE, text)

    def _list_waiting(self) -> list[str]:
        waiting = [file for file in self._files if file.waiting]
        lines = [f"{len(file.waiting)} lines of {file.name}" for file in waiting]
        return lines if self._ending is None else [*lines, ending_file.FILE]

    def _flush_ending(self) -> OSError | None:
        if self._ending is None:
            return None
        try:
            ending_file.write_ending(self._directory, *self._ending)
        except OSError as error:
            return error
        self._ending = None
        return None
