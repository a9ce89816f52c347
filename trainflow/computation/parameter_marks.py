"""What a factory puts on parameters beside values: attributes, which stay, and hooks, which can't.

Optimizers and layers tell parameters apart by attributes (`weight.no_decay = True`). FSDP2 makes
other parameters of a rank's parts, and of what it has gathered; autograd knows only the latter.

Process: every rank.  Thread: training.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainflow.computation.sharding import records_of
from trainflow.errors import TrainingError

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # torch has no public names for them


def copy_marks(source: nn.Parameter, target: nn.Parameter) -> None:
    """Put on ``target`` what is on ``source``; hooks too, to be found on it."""
    _mark(target, vars(source))
    for kind in _HOOKS:
        if getattr(source, kind):
            setattr(target, kind, getattr(source, kind))


def require_no_hooks(where: str, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse hooks, which nothing would call.

    Args:
        where: begins the error.
        parameters: with their names.

    Raises:
        TrainingError: says on which they are, and what to do instead.
    """
    hooked = [name for name, each in parameters if any(getattr(each, kind) for kind in _HOOKS)]
    if hooked:
        raise TrainingError(
            f"{where}: got hooks on parameters ({', '.join(hooked)}), expected none where "
            "parallel.mode shards them: what backward meets are other ones, gathered of the "
            "parts; put the hook on what the layer computes, freeze what is to stay "
            "(requires_grad=False), or set mode: ddp"
        )


class ParameterMarks:
    """The attributes of a module's parameters, by name.

    Args:
        module: built, and not sharded yet.
    """

    def __init__(self, module: nn.Module):
        named = module.named_parameters(remove_duplicate=False)
        self._by_name = {name: dict(vars(each)) for name, each in named}

    def put_back(self, module: nn.Module) -> None:
        """Put them on a rank's parts, and on what is gathered of them, as soon as that is there."""
        named = dict(module.named_parameters(remove_duplicate=False))
        for name, marks in self._by_name.items():
            _mark(named[name], marks)
        if not any(self._by_name.values()):
            return
        names = {each: name for name, each in module.named_modules()}
        for unit in module.modules():
            if isinstance(unit, FSDPModule):
                places = [each._module_info for each in records_of(unit)]  # noqa: SLF001  as there
                marks = [self._of(names[each.module], each.param_name) for each in places]
                any_unit: Any = unit  # a module too, which its type leaves out
                any_unit.register_forward_pre_hook(_MarkGathered(marks))

    def _of(self, module: str, parameter: str) -> dict[str, Any]:
        return self._by_name[f"{module}.{parameter}" if module else parameter]


class _MarkGathered:
    """Puts attributes on a unit's gathered parameters; FSDP2 keeps these from the first time on."""

    def __init__(self, marks: list[dict[str, Any]]):
        self._marks = marks
        self._is_done = False

    def __call__(self, unit: FSDPModule, _args: Any) -> None:  # noqa: ANN401  whatever it takes
        if self._is_done:
            return
        for record, marks in zip(records_of(unit), self._marks, strict=True):
            _mark(record.unsharded_param, marks)
        self._is_done = True


def _mark(parameter: nn.Parameter, marks: Mapping[str, Any]) -> None:
    for name, value in marks.items():
        setattr(parameter, name, value)
