"""TrainFlow: distributed training on Ray that takes failures as a normal event.

These are the names that a training function uses. They are imported when first asked for: the
coordinator and the command line never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainflow.computation.aborted import StepAborted
    from trainflow.computation.session import Session
    from trainflow.computation.step import Step
    from trainflow.computation.training_state import Committed
    from trainflow.data.batch import Batch

__all__ = ["Batch", "Committed", "Session", "Step", "StepAborted"]

_HOMES = {
    "Batch": "trainflow.data.batch",
    "Committed": "trainflow.computation.training_state",
    "Session": "trainflow.computation.session",
    "Step": "trainflow.computation.step",
    "StepAborted": "trainflow.computation.aborted",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever the name stands for
    if name not in _HOMES:
        raise AttributeError(f"module 'trainflow' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
