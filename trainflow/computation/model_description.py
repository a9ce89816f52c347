"""Build the model of a checkpoint, and tell what a folder in the way of Hugging Face needs of it.

    python -m trainflow.computation.model_description

Process: one of its own; `trainflow.checkpointing.safetensors_export` starts it.  Thread: main; see
`outside_a_run`.
"""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from trainflow.checkpointing.saved_models import weights_of
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.outside_a_run import build_state, parse_job
from trainflow.computation.own_process import answer_request
from trainflow.errors import CheckpointError

Json = Any

_SHOWN = 5
_NO_CONFIG = "config.json is not written: the model is no transformers model"


def describe_model(url: str, step: int, model: str | None, frozen: Path) -> Json:
    """Return what `safetensors_export` asks a model.

    Args:
        url: of the store.
        step: of the checkpoint.
        model: its name; None if there is only one.
        frozen: where tensors are written that belong to the model and not to its checkpoint.

    Raises:
        CheckpointError: the training function builds another model than the one that was saved.
    """
    manifest = CheckpointStore(url).read_manifest(step)
    job = parse_job(manifest.config, f"checkpoint of step {step} in {url}")
    saved = {
        name: (manifest.tensors[path].dtype, manifest.tensors[path].shape)
        for name, path in weights_of(manifest, model).items()
    }
    with build_state(job, manifest.job_id) as (state, _):
        built = next(iter(state.models.values())) if model is None else state.models[model]
        own = {
            name: (str(each.dtype).removeprefix("torch."), tuple(each.shape))
            for name, each in built.tensors().items()
        }
        differing = sorted(n for n in own.keys() | saved.keys() if own.get(n) != saved.get(n))
        if differing:
            raise CheckpointError(
                f"{job.entrypoint}: got a model in which {', '.join(differing[:_SHOWN])} differ "
                "from the saved one, expected the same; run this with the code that saved it"
            )
        return describe(built.module, saved.keys(), frozen)


def describe(module: nn.Module, saved: Collection[str], frozen: Path) -> Json:
    """Describe a module, of which ``saved`` are in a checkpoint; see `describe_model`."""
    stem, names = file_names(module)
    named = _named_tensors(module)
    fixed = {own: named[own].detach().contiguous() for own in names.values() if own not in saved}
    notes: list[str] = []
    if fixed:
        save_file(fixed, frozen)
        notes = [f"frozen tensors, written as the training function makes them: {len(fixed)}"]
    files = _config_files(module)
    return {
        "stem": stem,
        "names": names,
        "files": files,
        "notes": notes if files else [*notes, _NO_CONFIG],
    }


def file_names(module: nn.Module) -> tuple[str, dict[str, str]]:
    """Return what the files are called, and the model's own name of each tensor by that in a file.

    Of a peft model these are the adapters. A tensor that has several names is written under the
    first, as transformers has it.

    Raises:
        CheckpointError: ``state_dict`` gives something else than parameters and buffers.
    """
    state: dict[str, Any] = module.state_dict(keep_vars=True)
    tensors = {name: each for name, each in state.items() if isinstance(each, Tensor)}
    stem = "model"
    if hasattr(module, "peft_config"):
        from peft import get_peft_model_state_dict  # noqa: PLC0415  only where the job has it

        stem, tensors = "adapter_model", get_peft_model_state_dict(module, state_dict=tensors)
    own_names = {id(each): name for name, each in _named_tensors(module).items()}
    names: dict[str, str] = {}
    for name, tensor in tensors.items():
        own = own_names.get(id(tensor))
        if own is None:
            raise CheckpointError(
                f"{name}: got a tensor in state_dict() that is no parameter and no buffer of the "
                "model, expected none: what is saved of it isn't known"
            )
        if own not in names.values():
            names[name] = own
    return stem, names


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return each parameter and buffer once, by the name that a checkpoint gives it."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _config_files(module: nn.Module) -> dict[str, str]:
    """Return the text of the files that `save_pretrained` writes beside the weights."""
    known: Any = module
    with tempfile.TemporaryDirectory(prefix="trainflow-") as scratch:
        if hasattr(module, "peft_config"):
            config = next(iter(known.peft_config.values()))
            config.inference_mode = True
            config.save_pretrained(scratch)
        elif hasattr(getattr(known, "config", None), "save_pretrained"):
            known.config.architectures = [type(module).__name__]
            known.config.dtype = str(known.dtype).removeprefix("torch.")
            known.config.save_pretrained(scratch)
            generation = getattr(known, "generation_config", None)
            if generation is not None:
                generation.save_pretrained(scratch)
        return {path.name: path.read_text(encoding="utf-8") for path in Path(scratch).iterdir()}


if __name__ == "__main__":
    answer_request(
        lambda request: describe_model(
            request["url"], request["step"], request["model"], Path(request["frozen"])
        )
    )
