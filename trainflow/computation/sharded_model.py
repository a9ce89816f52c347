"""A model whose parameters and optimizer state are sharded over ranks, and made anew with them.

Process: every rank.  Thread: training.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.group import Group
from trainflow.communication.mesh import RankMesh
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.device_room import count_needs, require_room, total_bytes
from trainflow.computation.gathered_norms import require_norms_in_bf16
from trainflow.computation.meta_parameters import materialise
from trainflow.computation.model_handle import ModelHandle
from trainflow.computation.module_factory import ModuleFactory
from trainflow.computation.parameter_marks import ParameterMarks
from trainflow.computation.seeding import RandomState
from trainflow.computation.sharded_gradients import ShardedGradients
from trainflow.computation.sharded_optimizers import refuse_what_differs, require_elementwise
from trainflow.computation.sharding import Sharding, shard
from trainflow.computation.training_state import PreparedModel


@dataclass(frozen=True)
class Layout:
    """Which of how many equal parts of each parameter a rank holds."""

    index: int
    count: int


class ShardedModel:
    """One model, laid out for a rank of a world, and again for another.

    Args:
        blueprint: what it is made from.
        find_trainable: says which of a module's parameters are trained.
        device: where it lives.
        layout: the first one.
        exchange: carries its collectives.
        sharding: how it is sharded.

    Attributes:
        handle: for the training function.
        layout: the current one.
        prepared: the model as it is laid out.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        find_trainable: Callable[[nn.Module], list[tuple[str, nn.Parameter]]],
        device: torch.device,
        layout: Layout,
        exchange: ShardExchange,
        sharding: Sharding,
    ):
        self._blueprint = blueprint
        self._find_trainable = find_trainable
        self._device = device
        refuse_what_differs()
        self._factory = ModuleFactory(blueprint.model, device)
        self._exchange = exchange
        self._sharding = sharding
        self.layout = layout
        self.prepared = self._build(layout, with_values=False)
        self.handle = ModelHandle(self.prepared.module)

    def lay_out(self, layout: Layout, *, with_values: bool) -> PreparedModel:
        """Build it anew for another rank or world; its layers train, or don't, as before.

        Args:
            layout: the new one.
            with_values: its parameters are to be what the factory makes them; else they are zero
                until the state is loaded.
        """
        self.layout = layout
        before = RandomState.capture(self._device)
        modes = {name: each.training for name, each in self.prepared.module.named_modules()}
        self.prepared = self._build(layout, with_values=with_values)
        for name, each in self.prepared.module.named_modules():
            each.training = modes.get(name, each.training)
        self.handle.point_to(self.prepared.module)
        before.restore()
        return self.prepared

    def connect(self, group: Group) -> None:
        """From now on these are the ranks that share it, in forward too."""
        self._gradients.connect(group)

    def _build(self, layout: Layout, *, with_values: bool) -> PreparedModel:
        module = self._factory.make(with_values=with_values)
        self._find_trainable(module)  # refuses what can't be sharded, too
        if self._sharding.in_bf16:
            require_norms_in_bf16(module, self._device)
        needs = count_needs(module, layout.count, self._sharding)
        room_bytes = total_bytes(self._device)
        require_room(needs, room_bytes, self._sharding)
        marks = ParameterMarks(module)
        mesh = RankMesh(self._device, layout.index, layout.count)
        root = shard(module, mesh, self._exchange, self._sharding)
        materialise(module, self._sharding.home(self._device))
        marks.put_back(module)
        trainable = self._find_trainable(module)
        made = self._blueprint.optimizer([parameter for _, parameter in trainable])
        require_elementwise(made)
        require_room(needs.with_states(made), room_bytes, self._sharding)
        make_scheduler = self._blueprint.scheduler
        self._gradients = ShardedGradients(
            root, trainable, self._exchange, self._device, is_digested=self._sharding.is_digested
        )
        scheduler = None if make_scheduler is None else make_scheduler(made)
        return PreparedModel(module, made, scheduler, self._gradients)
