"""Where the weights of a model are in a checkpoint.  Pure."""

from typing import Any, cast

from trainflow.checkpointing.manifest import Manifest
from trainflow.errors import ConfigError

Json = Any


def weights_of(manifest: Manifest, model: str | None) -> dict[str, str]:
    """Return the path of each tensor of a model by its name in the model, in the saved order.

    Args:
        manifest: the checkpoint.
        model: as the training function named it in ``prepare``; None if there is only one.

    Raises:
        ConfigError: there is no such model, or there are several and none was named.
    """
    models = _mapping(_mapping(manifest.skeleton).get("models"))
    name = next(iter(models)) if model is None and len(models) == 1 else model
    if name not in models:
        known = ", ".join(map(str, models)) or "none"
        got = "no name" if model is None else repr(model)
        raise ConfigError(
            f"--model: got {got}, expected one of the models in the checkpoint: {known}"
        )
    paths = list(manifest.tensors)
    return {
        str(key): paths[value["tensor"]]
        for key, value in _mapping(models[name]).items()
        if isinstance(value, dict) and "tensor" in value
    }


def _mapping(node: Json) -> dict[Any, Json]:
    """Return a mapping of the skeleton; an empty one for anything else."""
    items: Json = cast("dict[str, Json]", node).get("dict") if isinstance(node, dict) else None
    return dict(cast("list[tuple[Any, Json]]", items)) if isinstance(items, list) else {}
