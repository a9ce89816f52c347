"""Gloo as a transport: CPU tensors over TCP, abortable in milliseconds.

Process: every rank.  Thread: connected by control, used by training, aborted by control.
Ranks: all of an epoch connect together.
"""

import json
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import Store

from trainflow.communication import sockets
from trainflow.communication.process_group import ProcessGroupTransport

_NUM_THREADS = 2
# A new device is recognised by the one port that starts to listen while it is made.
_device_lock = threading.Lock()


class GlooTransport(ProcessGroupTransport):
    """One epoch's gloo group."""

    def __init__(
        self, group: dist.ProcessGroupGloo, own_port: int, peers: frozenset[sockets.Address]
    ):
        super().__init__(group)
        self._own_port = own_port
        self._peers = peers

    def abort(self) -> None:
        """Shut this group's sockets down: gloo's own abort releases nobody (see `sockets`)."""
        sockets.shut_down_connections(self._own_port, self._peers)


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
        group = gloo(store, rank, world_size, options)
        group.set_timeout(timedelta(seconds=self.collective_timeout_s))
        peers: list[sockets.Address] = []
        for peer in range(world_size):
            if peer != rank:
                host, port = json.loads(store.get(f"gloo/{peer}"))
                peers.append((host, port))
        return GlooTransport(group, own_port, frozenset(peers))

    def _create_device(self) -> tuple[dist.ProcessGroupGloo.Device, int]:
        """Make a device and tell on which port it listens."""
        with _device_lock:
            before = sockets.listening_ports()
            device = dist.ProcessGroupGloo.create_device(hostname=self.host)
            fresh = sockets.listening_ports() - before
        if len(fresh) != 1:
            raise RuntimeError(f"expected one new listening port for a gloo device, got {fresh}")
        return device, fresh.pop()
