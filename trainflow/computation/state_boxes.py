"""Which part this rank holds of each tensor of a state.

Process: every rank that restores.  Thread: training.
"""

from collections.abc import Mapping

from torch import Tensor

from trainflow.checkpointing.boxes import Box, whole
from trainflow.computation.shards import box_of
from trainflow.computation.training_state import PreparedModel


class StateBoxes:
    """Tells it by path; the models are looked through once, however many tensors they have.

    Args:
        models: by name, as they are laid out now.
    """

    def __init__(self, models: Mapping[str, PreparedModel]):
        self._tensors = {name: each.tensors() for name, each in models.items()}
        self._optimized = {name: each.optimized_parameters() for name, each in models.items()}

    def box_of(self, path: str, shape: tuple[int, ...]) -> Box:
        """Return which part this rank holds of a tensor of the state.

        Args:
            path: in `TrainingState.tree`; what an optimizer keeps need not be there yet.
            shape: of the whole tensor.
        """
        parameter = self._find_parameter(path)
        if parameter is None or tuple(parameter.shape) != shape:
            return whole(shape)
        return box_of(parameter)

    def _find_parameter(self, path: str) -> Tensor | None:
        """Return what lies as the tensor at ``path`` does; None if that is in no model."""
        _, *keys = path.split("/")
        match keys:
            case ["models", model, *name]:  # which may have slashes, unlike a model's
                return self._tensors.get(model, {}).get("/".join(name))
            case ["optimizers", model, "state", position, _] if model in self._optimized:
                parameters = self._optimized[model]
                return parameters[int(position)] if int(position) < len(parameters) else None
            case _:
                return None
