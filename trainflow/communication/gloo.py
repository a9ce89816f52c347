"""Gloo as a transport: CPU tensors over TCP, abortable in milliseconds.

Process: every rank.  Thread: connected by control, used by training, aborted by control.
Ranks: all of an epoch connect together.
"""

import contextlib
import json
import threading
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from trainflow.communication import os_threads, sockets
from trainflow.communication.gloo_works import Collective, Release, Transfer, TransferWaiter
from trainflow.communication.process_group import ProcessGroupTransport

LEFT_BEHIND = "gloo-left-behind"  # the thread that waits for what an abort didn't end

_NUM_THREADS = 4
# No rank sends with this tag: who receives it learns whether the connection is closed.
_PROBE_TAG = 2**16
_CLOSES_WITHIN_S = 0.02
# A new device is recognised by the one port that starts to listen while it is made.
_device_lock = threading.Lock()


class GlooTransport(ProcessGroupTransport):
    """One epoch's gloo group."""

    def __init__(
        self,
        group: dist.ProcessGroupGloo,
        own_port: int,
        peers: dict[int, sockets.Address],
        threads: frozenset[int],
    ):
        super().__init__(group)
        self._own_port = own_port
        self._peers = peers
        self._release = Release(threads)
        self._transfers = TransferWaiter(self._release)
        self._lock = threading.Lock()
        self._issued: weakref.WeakSet[Collective] = weakref.WeakSet()

    def _lend(self, tensor: Tensor) -> Tensor:
        return tensor.detach()  # an object of its own, that can be given other memory

    def _watch(self, work: dist.Work, *lent: Tensor) -> Collective:
        collective = Collective(work, lent, self._release)
        with self._lock:
            self._issued.add(collective)
            if self._release.is_due:  # it was issued while control aborted
                self._leave_behind([collective])
        return collective

    def _watch_transfer(self, work: dist.Work, lent: Tensor) -> Transfer:
        return self._transfers.watch(work, lent)

    def abort(self) -> None:
        """Close this group's connections; what gloo then doesn't end, is left behind.

        Gloo's own abort releases nobody (see `sockets`).
        """
        with self._lock:
            if self._release.is_due:
                return
            sockets.shut_down_connections(self._own_port, frozenset(self._peers.values()))
            self._close_what_stands()
            left = [collective for collective in self._issued if not collective.is_over]
            if left:
                self._leave_behind(left)
            self._release.is_due = True

    def _close_what_stands(self) -> None:
        """Make gloo close the connections that it no longer reads, and so doesn't know are shut.

        It reads a message into an operation's memory. Is the operation gone, it reads no further,
        and spins. An operation that times out closes all connections of the group.
        """
        probe = torch.zeros(1)
        for peer in self._peers:
            with contextlib.suppress(RuntimeError):  # closed, as it should be
                probing = self._group.recv([probe], peer, _PROBE_TAG)
                probing.wait(timedelta(seconds=_CLOSES_WITHIN_S))

    def _leave_behind(self, left: list[Collective]) -> None:
        outlive = threading.Thread(target=self._outlive, args=(left,), daemon=True)
        outlive.name = LEFT_BEHIND
        outlive.start()

    def _outlive(self, left: list[Collective]) -> None:
        """Keep the group for as long as gloo has work: whoever drops it last waits for that."""
        for collective in left:
            collective.outlive()


class GlooConnector:
    """Connects gloo transports from one address of this machine.

    Attributes:
        host: the address that peers reach this machine at.
        connect_timeout_s: the longest that connecting to all peers may take.
        collective_timeout_s: the longest any collective may take.
    """

    def __init__(self, host: str, *, connect_timeout_s: float, collective_timeout_s: float):
        self.host = host
        self.connect_timeout_s = connect_timeout_s
        self.collective_timeout_s = collective_timeout_s

    def __call__(self, store: Store, rank: int, world_size: int) -> GlooTransport:
        """Connect with all ranks; RuntimeError or DistStoreError if one does not come in time."""
        device, own_port = self._create_device()
        store.set(f"gloo/{rank}", json.dumps([self.host, own_port]))
        gloo: Any = dist.ProcessGroupGloo  # the stubs leave out the options that it takes
        options = gloo._Options()  # noqa: SLF001  the only way to choose the device
        options._devices = [device]  # noqa: SLF001
        options._timeout = timedelta(seconds=self.connect_timeout_s)  # noqa: SLF001
        options._threads = _NUM_THREADS  # noqa: SLF001
        before = os_threads.thread_ids()
        group = gloo(store, rank, world_size, options)
        threads = os_threads.thread_ids() - before  # gloo's, and perhaps others
        group.set_timeout(timedelta(seconds=self.collective_timeout_s))
        peers: dict[int, sockets.Address] = {}
        for peer in range(world_size):
            if peer != rank:
                host, port = json.loads(store.get(f"gloo/{peer}"))
                peers[peer] = (host, port)
        return GlooTransport(group, own_port, peers, threads)

    def _create_device(self) -> tuple[dist.ProcessGroupGloo.Device, int]:
        """Make a device and tell on which port it listens."""
        with _device_lock:
            before = sockets.listening_ports()
            device = dist.ProcessGroupGloo.create_device(hostname=self.host)
            fresh = sockets.listening_ports() - before
        if len(fresh) != 1:
            raise RuntimeError(f"expected one new listening port for a gloo device, got {fresh}")
        return device, fresh.pop()
