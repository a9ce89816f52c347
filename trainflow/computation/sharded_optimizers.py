"""Optimizers that work where each rank holds a part of each parameter, and errors of the others.

A parameter, its gradient and what is computed from them elementwise are `DTensor`s, of which a rank
has its rows. Sums over them (norms, means, products of matrices) would need the other ranks.

Process: every rank.  Thread: training.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, SGD, Adafactor, Adagrad, Muon, Optimizer, Rprop, SparseAdam

from trainflow.communication.mesh import RankMesh
from trainflow.errors import TrainingError

_REFUSED: dict[type[Optimizer], str] = {
    Adafactor: "takes means over a parameter's rows and columns",
    LBFGS: "takes products of whole gradients, and calls forward again",
    Muon: "multiplies whole matrices",
    Rprop: "writes to single elements, which torch doesn't do on shards",
    SparseAdam: "takes sparse gradients",
}
_NOT_FUSED = (SGD, Adagrad)
_CHANGE = "take one that does, such as AdamW, or set parallel.mode: ddp"
_EXPECTED = "one that computes each element by itself where parallel.mode shards the model"
_FAILURES = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)
_aten = torch.ops.aten
_DRAWING = (
    _aten.bernoulli.default,
    _aten.bernoulli_.float,
    _aten.cauchy_.default,
    _aten.exponential_.default,
    _aten.geometric_.default,
    _aten.log_normal_.default,
    _aten.native_dropout.default,
    _aten.normal_.default,
    _aten.rand_like.default,
    _aten.randint_like.default,
    _aten.randint_like.low_dtype,
    _aten.randn_like.default,
    _aten.uniform_.default,
)
"""Of those that draw, all that torch does on shards."""
_TAKEN = (
    "got item(), float() or bool() of what ranks hold parts of, as of a sharded parameter's norm, "
    "expected a whole number: take to_local() for this rank's part, and session.reduce() to "
    "combine it with the others', or session.full_state_dict()"
)
_DRAWN = (
    "got random numbers that are drawn into what ranks hold parts of, as by torch.randn_like of a "
    "sharded parameter, expected none: each rank would draw others than of the whole; draw values "
    "in the model's factory, or set parallel.mode: ddp"
)


def require_elementwise(optimizer: Optimizer) -> None:
    """Refuse what torch has and shards don't take.

    Raises:
        TrainingError: says why, and what to change.
    """
    for kind, reason in _REFUSED.items():
        if isinstance(optimizer, kind):
            raise TrainingError(
                f"prepare: got the optimizer {kind.__name__}, which {reason}, expected "
                f"{_EXPECTED}; {_CHANGE}"
            )
    if isinstance(optimizer, _NOT_FUSED) and any(
        group.get("fused") for group in optimizer.param_groups
    ):
        raise TrainingError(
            f"prepare: got {type(optimizer).__name__}(fused=True), which torch doesn't do on "
            f"shards, expected {_EXPECTED}; leave fused out"
        )


@contextmanager
def stepping(optimizer: Optimizer) -> Generator[None]:
    """Step it inside; what it can't do with shards is said in other words.

    Raises:
        TrainingError: it failed.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except TrainingError as error:
        raise TrainingError(f"commit: the optimizer {type(optimizer).__name__}: {error}") from error
    except _FAILURES as error:
        first = str(error).partition("\n")[0]
        raise TrainingError(
            f"commit: got {type(error).__name__} ({first}) from the optimizer "
            f"{type(optimizer).__name__}, expected {_EXPECTED}; {_CHANGE}"
        ) from error


def refuse_what_differs() -> None:
    """From now on no number is taken out of what ranks have parts of, and none drawn into it.

    Torch would take this rank's own, and draw what has nothing to do with the numbers of a whole
    tensor: an optimizer that does so would go another way than with `ddp`, and on each rank.
    """
    dtensor: Any = DTensor
    handlers = dtensor._op_dispatcher._custom_op_handlers  # noqa: SLF001  there is no other way
    for operation in _DRAWING:
        handlers[operation] = _Refusal(_DRAWN, handlers)
    handlers[_aten._local_scalar_dense.default] = _Refusal(_TAKEN, handlers)  # noqa: SLF001  its only name


class _Refusal:
    """What torch calls in place of an operation on sharded tensors.

    Args:
        reason: why it can't be done if ranks have parts; else it is done.
        handlers: torch's own, of which this is one.
    """

    def __init__(self, reason: str, handlers: dict[object, Any]):
        self._reason = reason
        self._handlers = handlers

    def __call__(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401  whatever it takes
        if any(_is_partial(each) for each in args):
            raise TrainingError(self._reason)
        del self._handlers[operation]
        try:
            return operation(*args, **kwargs)
        finally:
            self._handlers[operation] = self


def _is_partial(value: object) -> bool:
    return (
        isinstance(value, DTensor)
        and isinstance(value.device_mesh, RankMesh)
        and not all(placement.is_replicate() for placement in value.placements)
    )
