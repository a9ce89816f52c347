"""Keep in a worker's log what is told of its death: of one that dies as it starts nobody else does.

A node's Keeper copies what its workers print once they stamp; this one adds to the same log.
Whatever either appends stays whole; if both begin a new file of the log in one moment, some bytes
have the same number.

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
Fails: never; what can't be written is in the coordinator's log.
"""

import logging
from pathlib import Path

from trainflow.coordination.log_segments import append_to_log
from trainflow.coordination.worker_output import FOLDER, MAX_LOGS, remove_oldest

logger = logging.getLogger(__name__)


def keep_last_words(directory: Path, worker_id: str, cause: str, words: str) -> None:
    """Append to a worker's log in its run's folder.

    Args:
        directory: of the run.
        worker_id: of the worker.
        cause: why it is lost, in one line.
        words: all that is known of it.
    """
    logs = directory / FOLDER
    text = f"[{worker_id} is lost: {cause}]\n{words.rstrip()}\n"
    try:
        append_to_log(logs / worker_id, text.encode(errors="replace"))
    except OSError:
        logger.exception("this is not in the log of its worker: %s", text)
    remove_oldest(logs, MAX_LOGS)
