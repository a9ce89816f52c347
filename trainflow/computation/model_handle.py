"""What a training function holds of a model whose shards may be laid out anew.

Process: every rank.  Thread: training.
"""

from typing import Any

from torch import nn

_OWN = frozenset({"_current", "point_to", "__class__"})


class ModelHandle(nn.Module):
    """Is the model, whichever one that is at the moment.

    Where the world changes, a sharded model is built again; a training function calls and asks this
    one all the same. Of itself it has nothing: parameters, hooks, modes are the current model's.
    """

    def __init__(self, current: nn.Module):  # nn.Module's own would make it one of its own
        self.point_to(current)

    def point_to(self, current: nn.Module) -> None:
        """From now on be this model."""
        object.__setattr__(self, "_current", current)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  whatever the model takes
        """Call the model."""
        return self._current(*args, **kwargs)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  whatever the model has
        """Ask the model for everything but what makes this a handle."""
        if name in _OWN:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_current"), name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401  whatever the model has
        """Set it on the model."""
        setattr(self._current, name, value)
