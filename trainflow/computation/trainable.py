"""What of a module is to be trained, and whether it can be.

Process: every rank.  Thread: training.  Pure.
"""

import torch
from torch import nn

from trainflow.computation.parameter_marks import require_no_hooks
from trainflow.config.job import JobConfig
from trainflow.errors import TrainingError


def find_trainable(name: str, module: nn.Module, job: JobConfig) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are to be trained, by their names in the module.

    Args:
        name: what the module is prepared as.
        module: built.
        job: says how they are to be trained.

    Raises:
        TrainingError: there are none, or complex ones, or more exact ones than compression takes,
            or less exact ones than fp16 training does, or such that can't be sharded; or forward
            would write parameters.
    """
    _require_unwritten(name, module)
    trainable = [(key, each) for key, each in module.named_parameters() if each.requires_grad]
    if not trainable:
        raise TrainingError(
            f"prepare({name!r}): got a model without trainable parameters, expected at least one"
        )
    # Norms and sums over ranks are of real numbers: a complex gradient would end the first step.
    unusable = [f"{key}: {each.dtype}" for key, each in trainable if each.is_complex()]
    if unusable:
        raise TrainingError(
            f"prepare({name!r}): got trainable parameters that are complex "
            f"({', '.join(unusable)}), expected real ones; keep each as torch.view_as_real gives "
            "it, and take torch.view_as_complex of it in forward"
        )
    compression = job.communication.compression
    too_exact = [key for key, each in trainable if each.dtype == torch.float64]
    if too_exact and compression not in {"none", "bf16"}:
        raise TrainingError(
            f"prepare({name!r}): got communication.compression: {compression} and trainable "
            f"parameters of float64 ({', '.join(too_exact)}), expected float32 or narrower ones; "
            "make them float32, or set compression: none"
        )
    if job.parallel.is_sharded:
        _require_shardable(name, module, trainable)
        _require_gatherable(name, module, job)
        _require_narrow(name, trainable, job)
    half = [key for key, each in trainable if each.dtype == torch.float16]
    if half and job.training.precision == "fp16":
        raise TrainingError(
            f"prepare({name!r}): got training.precision: fp16 and trainable parameters of float16 "
            f"({', '.join(half)}), expected float32 ones, which session.autocast() computes with "
            "in fp16; call module.float(), or set precision: fp32"
        )
    return trainable


def _require_unwritten(name: str, module: nn.Module) -> None:
    """Refuse layers that write rows of their weight in forward: which, depends on a rank's batch.

    Ranks that hold the weight whole would part; a weight that is gathered is let go.
    """
    writing = [
        f"{key or 'the module itself'}: {type(each).__name__}"
        for key, each in module.named_modules()
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.max_norm is not None
    ]
    if writing:
        raise TrainingError(
            f"prepare({name!r}): got layers with max_norm ({', '.join(writing)}), which write "
            "their weight in forward, each rank for its own batch, expected parameters that the "
            "optimizer alone changes; leave max_norm out, and scale in forward what an "
            "nn.Embedding returns (before it is summed, for an EmbeddingBag): rows * (max_norm / "
            "rows.norm(dim=-1, keepdim=True).clamp(min=max_norm))"
        )


def _require_shardable(
    name: str, module: nn.Module, trainable: list[tuple[str, nn.Parameter]]
) -> None:
    scalars = [key for key, each in module.named_parameters() if not each.dim()]
    if scalars:
        raise TrainingError(
            f"prepare({name!r}): got parameters without dimensions ({', '.join(scalars)}), "
            "expected none where parallel.mode shards them; give them one, as torch.zeros(1)"
        )
    empty = [key for key, each in module.named_parameters() if not each.numel()]
    if empty:
        raise TrainingError(
            f"prepare({name!r}): got parameters without elements ({', '.join(empty)}), expected "
            "none where parallel.mode shards them; leave them out, or set mode: ddp"
        )
    strided = [key for key, each in module.named_parameters() if not each.is_contiguous()]
    if strided:
        raise TrainingError(
            f"prepare({name!r}): got parameters that aren't contiguous ({', '.join(strided)}), "
            "expected contiguous ones where parallel.mode shards them; make each with .contiguous()"
        )
    require_no_hooks(f"prepare({name!r})", trainable)
    dtypes = sorted({str(each.dtype) for _, each in trainable})
    if len(dtypes) > 1:
        raise TrainingError(
            f"prepare({name!r}): got trainable parameters of {' and '.join(dtypes)}, expected one "
            "type where parallel.mode shards them, since a layer's travel together; call "
            "module.float(), and compute in another type with session.autocast()"
        )


def _require_narrow(name: str, trainable: list[tuple[str, nn.Parameter]], job: JobConfig) -> None:
    """Refuse types that sums of shards, or parameters that are gathered in another, don't take."""
    gather, dtype = job.parallel.gather, trainable[0][1].dtype
    if dtype == torch.float64:
        raise TrainingError(
            f"prepare({name!r}): got trainable parameters of float64, expected float32 or narrower "
            f"ones with parallel.mode: {job.parallel.mode}; call module.float(), or set mode: ddp"
        )
    if gather != "fp32" and dtype != torch.float32:
        raise TrainingError(
            f"prepare({name!r}): got parallel.gather: {gather} and trainable parameters of "
            f"{dtype}, expected float32 ones, which are gathered in that type; call "
            "module.float(), or set gather: fp32, which gathers parameters as they are"
        )


def _require_gatherable(name: str, module: nn.Module, job: JobConfig) -> None:
    odd = [
        f"{key}: {each.dtype}"
        for key, each in module.named_parameters()
        if not each.is_floating_point()
    ]
    if odd and job.parallel.gather == "fp8":
        raise TrainingError(
            f"prepare({name!r}): got parallel.gather: fp8 and parameters that are no floats "
            f"({', '.join(odd)}), expected floats alone; keep the others as buffers, or set "
            "gather: bf16"
        )
