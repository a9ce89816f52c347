"""How a run ended: ``result.json`` in its folder, whole or not there at all.

Process: coordinator, or who ends a run that has none.  Blocks: on the local disk.
"""

import json
from pathlib import Path

from trainflow.checkpointing.whole_files import replace_file
from trainflow.coordination.run_state import Ending, RunState

FILE = "result.json"


def write_ending(directory: Path, job_id: str, ending: Ending, at_s: float) -> None:
    """Write how a run ended.

    Args:
        directory: the run's.
        job_id: names it.
        ending: how.
        at_s: CLOCK_REALTIME.

    Raises:
        OSError: it can't be written; what was there is there still.
    """
    result = {"job_id": job_id, "state": str(ending.state), "reason": ending.reason}
    result |= {"exit_code": ending.exit_code, "ended_at_s": at_s}
    replace_file(directory / FILE, (json.dumps(result, indent=1) + "\n").encode())


def read_ending(directory: Path) -> Ending | None:
    """Return how a run ended, if it has: one that comes back must not begin anew."""
    path = directory / FILE
    return read_ending_at(path) if path.exists() else None


def read_ending_at(path: Path) -> Ending:
    """Return how a run ended, from a file that is there; one that is damaged tells a failure."""
    try:
        result = json.loads(path.read_text())
        return Ending(RunState(result["state"]), result["reason"], result["exit_code"])
    except (ValueError, KeyError, TypeError) as error:
        return Ending(RunState.FAILED, f"it has ended, but {path} is damaged: {error}", 1)
