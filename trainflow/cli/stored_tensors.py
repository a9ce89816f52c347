"""What stands for the tensors in the checkpoints of a run, for whoever compares it with another.

Process: driver.  Blocks: on the store.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainflow.checkpointing.store import CheckpointStore
from trainflow.cli.comparison_notes import IN_PARTS
from trainflow.cli.output import say
from trainflow.cli.tables import escape
from trainflow.errors import CheckpointError

if TYPE_CHECKING:
    from trainflow.checkpointing.manifest import Manifest, TensorEntry
    from trainflow.coordination.bisection import Tensors
    from trainflow.coordination.past_run import PastRun


def read_stored(run: "PastRun") -> "dict[int, Tensors]":
    """Return, by step, what stands for each tensor of the checkpoints that a run has made."""
    url = run.job.config["checkpoint"]["url"]
    if url is None:
        return {}
    stored: dict[int, Tensors] = {}
    try:
        store = CheckpointStore(url)
        for step in store.committed_steps():
            try:
                manifest = store.read_manifest(step)
            except CheckpointError as error:
                told = escape(str(error))
                say(f"note: the checkpoint of step {step} is left out: {told}", err=True)
                continue
            if manifest.job_id == run.job.job_id:
                stored[step] = _contents(manifest)
    except CheckpointError as error:
        say(f"note: checkpoints are left out: {error}", err=True)
    return stored


def _contents(manifest: "Manifest") -> Mapping[str, str]:
    """Return for each tensor how it is cut into chunks, and their hashes.

    What is kept in other parts has other chunks, whatever its bits are: it has another name.
    """
    return {_name(path, entry): repr(entry) for path, entry in manifest.tensors.items()}


def _name(path: str, entry: "TensorEntry") -> str:
    return path if len(entry.shards) == 1 else f"{path}{IN_PARTS}{len(entry.shards)}"
