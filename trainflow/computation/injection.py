"""Do in a rank what a chaos campaign has ordered of it: die or stand still at a place, flip a bit.

A bit is flipped in the first bucket of summed gradients that the rank waits for in a step's commit:
after the sum, before it is hashed. So the rank alone holds other bits than the others, as after a
fault of its memory. In a world of one nobody could see that: there it isn't done, and waits.

Process: worker, in a campaign.  Thread: training; control, where groups are connected.
Blocks: on the local disk, once a step.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import Store

from trainflow.clock import Clock
from trainflow.communication.transport import Connector, Transport, Work
from trainflow.computation.chaos_orders import SIGNALS, Claim, Order, OrderBook, claim
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

_BITS = 8


class Injector:
    """One worker's part in a campaign's faults.

    Args:
        folder: of the run, in the campaign's folder.
        worker_id: names this worker.
        clock: tells when something was done.
    """

    def __init__(self, folder: Path, worker_id: str, clock: Clock):
        self._folder = folder
        self._worker_id = worker_id
        self._clock = clock
        self._book = OrderBook(folder)
        self._rank = -1
        self._world_size = 0
        self._step = 0
        self._phase = Phase.STARTING
        self._epoch = INITIAL_EPOCH
        self._given_up: set[int] = set()

    def watch(self, connect: Connector) -> Connector:
        """Return a connector whose transports let bits be flipped, and tell this rank's number."""

        def connect_watched(store: Store, rank: int, world_size: int) -> Transport:
            transport = connect(store, rank, world_size)
            self._rank, self._world_size = rank, world_size
            return _WatchedTransport(transport, self) if world_size > 1 else transport

        return connect_watched

    def on_stamp(self, phase: Phase, step: int, epoch: EpochId) -> None:
        """The training thread enters a phase."""
        if epoch == INITIAL_EPOCH:  # a spare that rehearses
            return
        if phase is Phase.HEALING or (phase is Phase.DATA and step != self._step):
            self._book.look()
        self._step = step + 1 if phase.is_joining else step
        self._phase, self._epoch = phase, epoch
        for order in self._due():
            if order.phase == phase and self._claim(order):
                os.kill(os.getpid(), SIGNALS[order.kind])

    def on_summed(self, tensor: Tensor) -> None:
        """A tensor has been summed over ranks, in place."""
        if self._phase is not Phase.COMMUNICATE or not tensor.is_floating_point():
            return
        for order in self._due():
            if order.kind == "flip" and self._claim(order):
                flip_bit(tensor, order.pick)

    def _due(self) -> list[Order]:
        return [
            order
            for order in self._book.orders
            if order.rank == self._rank
            and self._is_now(order.step)
            and order.number not in self._given_up
        ]

    def _is_now(self, step: int | None) -> bool:
        """Whether an order is for the step that this rank is in, or joins to go on with."""
        return step in {None, self._step} or (
            step is not None and self._phase.is_joining and step < self._step
        )

    def _claim(self, order: Order) -> bool:
        """Tell whether this process is to do it, which it is once at most."""
        self._given_up.add(order.number)
        made = Claim(
            order.number,
            self._worker_id,
            os.getpid(),
            self._rank,
            self._step,
            (self._epoch.incarnation, self._epoch.counter),
            self._clock.unix_s(),
            self._world_size,
        )
        return claim(self._folder, made)


def flip_bit(tensor: Tensor, pick: float) -> None:
    """Flip one bit of a tensor, in place.

    Args:
        tensor: 1-D, contiguous.
        pick: in [0, 1): which bit of them all.
    """
    data = tensor.detach().view(torch.uint8)
    place, bit = divmod(int(pick * data.numel() * _BITS), _BITS)
    data[place] ^= 1 << bit


class _WatchedWork:
    def __init__(self, work: Work, tensor: Tensor, injector: Injector):
        self._work = work
        self._tensor = tensor
        self._injector = injector

    def wait(self) -> bool:
        done = self._work.wait()
        if done:  # else it holds garbage, of which a bit more or less tells nothing
            self._injector.on_summed(self._tensor)
        return done


class _WatchedTransport:
    """Passes everything on; tells of each sum that has come. See `Transport`."""

    def __init__(self, transport: Transport, injector: Injector):
        self._transport = transport
        self._injector = injector

    def all_reduce(self, tensor: Tensor) -> Work:
        work = self._transport.all_reduce(tensor)
        return _WatchedWork(work, tensor, self._injector)

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        return self._transport.all_gather(output, tensor)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        return self._transport.all_to_all(output, tensor)

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Work:
        return self._transport.all_to_all_among(output, tensor, ranks)

    def send(self, tensor: Tensor, to_rank: int) -> Work:
        return self._transport.send(tensor, to_rank)

    def recv(self, tensor: Tensor, from_rank: int) -> Work:
        return self._transport.recv(tensor, from_rank)

    def abort(self) -> None:
        self._transport.abort()
