"""Between checkpoints and the formats of others, where that needs torch: in a process of its own.

Process: driver; one of its own does the work.  Blocks: until that has answered.
"""

from pathlib import Path
from typing import Any

from trainflow.checkpointing.export_folder import fresh_folder
from trainflow.checkpointing.safetensors_export import Exported
from trainflow.checkpointing.torch_process import run_with_torch

_EXPORT = "trainflow.computation.dcp_export"
_IMPORT = "trainflow.computation.checkpoint_import"


def export_dcp(url: str, step: int, to: Path, *, replace: bool) -> Exported:
    """Write a whole checkpoint as a folder that ``torch.distributed.checkpoint.load`` reads.

    Args:
        url: of the store.
        step: of the checkpoint.
        to: the folder; there whole afterwards, or not at all.
        replace: ``to`` may be an earlier export.

    Raises:
        ConflictError: ``to`` is there already.
        CheckpointError: the checkpoint is damaged, or ``to`` can't be written.
    """
    with fresh_folder(to, replace=replace) as folder:
        answer = run_with_torch(_EXPORT, {"url": url, "step": step, "folder": str(folder)})
    return Exported(
        answer["step"], tuple(answer["files"]), answer["num_tensors"], answer["num_bytes"]
    )


def import_checkpoint(request: dict[str, Any]) -> dict[str, Any]:
    """Make a checkpoint; see `trainflow.computation.checkpoint_import.ImportRequest`.

    Returns:
        ``step``, ``num_tensors``, ``num_bytes``, and ``notes`` for the user.

    Raises:
        TrainFlowError: nothing was committed.
    """
    return run_with_torch(_IMPORT, request)
