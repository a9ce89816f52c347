"""Everything that a commit moves, and that a healed rank must be given: all of it, in one place.

Process: every rank.  Thread: training.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainflow.communication.reduced_gradients import Reducer
from trainflow.computation.loss_scaling import LossScaler
from trainflow.computation.residual_state import ResidualState
from trainflow.computation.shards import like, local_part
from trainflow.epochs import Version
from trainflow.errors import StateError
from trainflow.monitoring.anomalies.norm_guard import NormGuard


def _nothing() -> None:
    """Do nothing."""


class Stateful(Protocol):
    """User state that commits with the step."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors, numbers, strings, None, and dicts, lists and tuples of them."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Take over such a state."""
        ...


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    Attributes:
        number: the step's number, from 1.
        applied: False if the step was skipped: its gradients were not finite, or so large that the
            job asks for that (``monitoring.anomalies.action``).
        loss: mean over all samples of the step; NaN if there were none.
        grad_norm: 2-norm of the mean gradient, before clipping.
        lr: learning rate that the step used, of the first parameter group.
        world_size: number of ranks that took part.
    """

    number: int
    applied: bool
    loss: float
    grad_norm: float
    lr: float
    world_size: int


@dataclass
class PreparedModel:
    """A model with what trains it."""

    module: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    reducer: Reducer

    def __post_init__(self) -> None:
        self._persistent = frozenset(self.module.state_dict())
        self._rebuilt = frozenset(dict(self.module.named_buffers())) - self._persistent
        self._extended = {
            name: module
            for name, module in self.module.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }

    def persistent_buffers(self) -> list[Tensor]:
        """Buffers that are state (BatchNorm statistics), without those that can be made again."""
        named = self.module.named_buffers()
        return [buffer for name, buffer in named if name in self._persistent]

    def optimized_parameters(self) -> list[Tensor]:
        """Parameters in the optimizer's order, by which it names what it keeps of them."""
        return _parameters_of(self.optimizer)

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """Trainable parameters and persistent buffers, by name; not copies.

        Frozen parameters and other buffers are what the model's factory made them, on every rank.
        """
        named: dict[str, Tensor] = {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        buffers = self.module.named_buffers()
        named.update((name, each) for name, each in buffers if name not in self._rebuilt)
        return {name: tensor.detach() for name, tensor in named.items()}

    def extra_states(self) -> dict[str, Any]:
        """What modules add to their ``state_dict()`` on their own, by the module's name."""
        return {name: module.get_extra_state() for name, module in self._extended.items()}

    def load_extra_states(self, states: dict[str, Any]) -> None:
        """Give them back.

        Raises:
            StateError: they are of another model.
        """
        _require_same_names("modules with extra state", self._extended, states)
        for name, state in states.items():
            self._extended[name].set_extra_state(state)


@dataclass
class Registered:
    """A user's state, and what to call once a step has been applied."""

    state: Stateful
    on_commit: Callable[[], None] | None


@dataclass
class TrainingState:
    """The whole of it.

    Attributes:
        models: by the name they were prepared under.
        registered: by name.
        version: of the state; None while the tensors hold no committed one.
        consumed_samples: position in the data.
        skipped_in_a_row: steps without finite gradients, up to now.
        last_commit: what the last one did.
        loss_scaler: under fp16.
        norm_guard: what is known of gradients' norms, where steps may be skipped for theirs.
        residuals: under error feedback, once steps have begun.
        before_overwrite: called before anything but forward changes a tensor.
    """

    models: dict[str, PreparedModel] = field(default_factory=dict[str, PreparedModel])
    registered: dict[str, Registered] = field(default_factory=dict[str, Registered])
    version: Version | None = None
    consumed_samples: int = 0
    skipped_in_a_row: int = 0
    last_commit: Committed | None = None
    loss_scaler: LossScaler | None = None
    norm_guard: NormGuard | None = None
    residuals: ResidualState | None = None
    before_overwrite: Callable[[], None] = _nothing

    def begin_overwrite(self) -> None:
        """From here on live tensors are written to: they hold no committed state."""
        self.before_overwrite()
        self.version = None

    def tree(self) -> dict[str, Any]:
        """Return the state as a tree whose tensors are the live ones."""
        scaler, guard = self.loss_scaler, self.norm_guard
        return {
            "models": {name: each.tensors() for name, each in self.models.items()},
            "extra_states": {name: each.extra_states() for name, each in self.models.items()},
            "optimizers": {
                name: _optimizer_tree(each.optimizer) for name, each in self.models.items()
            },
            "schedulers": {
                name: each.scheduler.state_dict()
                for name, each in self.models.items()
                if each.scheduler is not None
            },
            "registered": {name: each.state.state_dict() for name, each in self.registered.items()},
            "progress": {
                "consumed_samples": self.consumed_samples,
                "skipped_in_a_row": self.skipped_in_a_row,
                "last_commit": None if self.last_commit is None else asdict(self.last_commit),
            },
            **({} if scaler is None else {"loss_scaler": scaler.state_dict()}),
            **({} if guard is None else {"norm_guard": guard.to_tree()}),
            **({"compression": chosen} if (chosen := self._chosen_compression()) else {}),
            **({"factors": factors} if any((factors := self._factors()).values()) else {}),
            **({} if self.residuals is None else {"residuals": self.residuals.tree()}),
        }

    def _chosen_compression(self) -> dict[str, str]:
        """Return what `AutoSum` has chosen and a step was committed with, by model."""
        chosen = {
            name: each.reducer.auto.kept
            for name, each in self.models.items()
            if each.reducer.auto is not None
        }
        return {name: kept for name, kept in chosen.items() if kept is not None}

    def _factors(self) -> dict[str, dict[str, Tensor]]:
        """Return what low-rank sums begin from, by model and parameter."""
        return {name: each.reducer.factors() for name, each in self.models.items()}

    def _load_judgement(self, tree: dict[str, Any]) -> None:
        """Take over by what steps are judged; of a run that judged by nothing, nothing is known."""
        if self.loss_scaler is not None and "loss_scaler" in tree:
            self.loss_scaler.load_state_dict(tree["loss_scaler"])
        if self.norm_guard is not None:
            known = tree.get("norm_guard")
            self.norm_guard = NormGuard() if known is None else NormGuard.from_tree(known)

    def _load_compression(self, tree: dict[str, Any]) -> None:
        chosen: dict[str, str] = tree.get("compression", {})
        for name, each in self.models.items():
            if each.reducer.auto is not None:
                each.reducer.auto.kept = chosen.get(name)
        for model, factors in self._factors().items():
            for name, own in factors.items():
                incoming = tree.get("factors", {}).get(model, {}).get(name)
                if incoming is not None and incoming.shape == own.shape:
                    _copy_into(own, incoming)
        if self.residuals is not None:
            self.residuals.load_tree(tree.get("residuals"))

    @torch.no_grad()
    def load_tree(self, tree: dict[str, Any], version: Version) -> None:
        """Take over a state that ``tree()`` gave on another rank; copies what isn't in place yet.

        Raises:
            StateError: it is the state of another model.
        """
        _require_same_names("models", self.models, tree["models"])
        _require_same_names("registered state", self.registered, tree["registered"])
        for name, tensors in tree["models"].items():
            own = self.models[name].tensors()
            _require_same_names(f"tensors of {name}", own, tensors)
            for key, tensor in tensors.items():
                _copy_into(own[key], tensor)
            self.models[name].load_extra_states(tree.get("extra_states", {}).get(name, {}))
        for name, optimizer in tree["optimizers"].items():
            _load_optimizer(self.models[name].optimizer, optimizer)
        for name, scheduler in tree["schedulers"].items():
            own_scheduler = self.models[name].scheduler
            if own_scheduler is not None:
                own_scheduler.load_state_dict(scheduler)
        for name, state in tree["registered"].items():
            self.registered[name].state.load_state_dict(state)
        progress = tree["progress"]
        self.consumed_samples = progress["consumed_samples"]
        self.skipped_in_a_row = progress["skipped_in_a_row"]
        last = progress["last_commit"]
        self.last_commit = None if last is None else Committed(**last)
        self._load_judgement(tree)
        self._load_compression(tree)
        self.version = version


@dataclass(frozen=True)
class StepStart:
    """What forward and the training function may change before a commit, as it was."""

    buffers: dict[str, dict[str, Tensor]]
    extra_states: dict[str, dict[str, Any]]
    registered: dict[str, dict[str, Any]]

    @classmethod
    def capture(cls, state: TrainingState) -> "StepStart":
        """Copy all buffers (BatchNorm statistics, caches), extra and registered state."""
        return cls(
            {
                name: {key: buffer.clone() for key, buffer in each.module.named_buffers()}
                for name, each in state.models.items()
            },
            {name: deepcopy(each.extra_states()) for name, each in state.models.items()},
            {name: deepcopy(each.state.state_dict()) for name, each in state.registered.items()},
        )

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Put them back after a step that did not commit."""
        for name, buffers in self.buffers.items():
            own = dict(state.models[name].module.named_buffers())
            for key, buffer in buffers.items():
                own[key].copy_(buffer)
        for name, states in self.extra_states.items():
            state.models[name].load_extra_states(deepcopy(states))
        for name, saved in self.registered.items():
            state.registered[name].state.load_state_dict(deepcopy(saved))


def _optimizer_tree(optimizer: Optimizer) -> dict[str, Any]:
    """Per-parameter state by position, and hyperparameters by group."""
    position = 0
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        groups.append({key: value for key, value in group.items() if key != "params"})
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state[str(position)] = dict(optimizer.state[parameter])
            position += 1
    return {"state": state, "groups": groups}


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _load_optimizer(optimizer: Optimizer, tree: dict[str, Any]) -> None:
    parameters = _parameters_of(optimizer)
    for group, values in zip(optimizer.param_groups, tree["groups"], strict=True):
        group.update(values)
    for position, parameter in enumerate(parameters):
        incoming = tree["state"].get(str(position))
        if incoming is None:
            optimizer.state.pop(parameter, None)
            continue
        own = optimizer.state[parameter]
        for key, value in incoming.items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor):
                _copy_into(own[key], value)
            elif isinstance(value, Tensor):
                moved = value.to(_device_of(optimizer, parameter, key))
                is_part = moved.dim() > 0 and moved.shape == local_part(parameter).shape
                own[key] = like(parameter, moved) if is_part else moved
            else:
                own[key] = value


def _device_of(optimizer: Optimizer, parameter: Tensor, key: str) -> torch.device:
    """Return where a part of a parameter's state lies: as `Optimizer.load_state_dict` has it."""
    defaults = optimizer.defaults
    counts_on_cpu = not (defaults.get("capturable") or defaults.get("fused"))
    return torch.device("cpu") if key == "step" and counts_on_cpu else parameter.device


def _copy_into(own: Tensor, incoming: Tensor) -> None:
    own, incoming = local_part(own), local_part(incoming)
    if own.shape != incoming.shape or own.dtype != incoming.dtype:
        raise StateError(
            f"got a tensor {tuple(incoming.shape)} {incoming.dtype}, expected {tuple(own.shape)} "
            f"{own.dtype}: the training function must build the same model on every rank"
        )
    if own.data_ptr() != incoming.data_ptr():
        own.copy_(incoming)


def _require_same_names(what: str, own: dict[str, Any], incoming: dict[str, Any]) -> None:
    if own.keys() != incoming.keys():
        raise StateError(
            f"{what}: got {sorted(incoming)}, expected {sorted(own)}: the training function must "
            "prepare and register the same on every rank"
        )
