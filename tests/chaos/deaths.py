"""Deaths at an exact place, by hooks in the process that is to die.

Process: worker.  Thread: training.  Or keeper, in the thread that sends copies.
"""

import os
import signal
import socket
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainflow import Session
from trainflow.checkpointing import peer_memory
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.communication.fsdp_collectives import ShardExchange

AT_TIME = {"gather": 2, "backward": 2, "scatter": 2, "optimizer": 1, "snapshot": 1}
"""Which time in a step that a place is reached it is meant.

The second layer's gather in forward, with the first one's parameters there. In the second
microbatch, the middle of backward, where the last layer's sum is on its way, and the first layer's
sum. The optimizer has moved all; the snapshot's bytes are there, and it isn't complete.
"""


class DieAt(BaseModel):
    """Where a rank is to die."""

    rank: int | None
    """None: whichever but 0 gets there first, as who copies the state depends on its node."""
    step: int | None
    """None: that which a file named dying says once it is there."""
    phase: Literal["gather", "backward", "scatter", "optimizer", "snapshot"]


class Death:
    """Kills this process at one place, if at any, unless one has died there before."""

    def __init__(self, session: Session, at: DieAt | None, work_dir: Path):
        self._session = session
        self._at = at
        self._mark, self._said = work_dir / "died", work_dir / "dying"
        self._fatal = None if at is None else at.step
        self._step = self._num_times = 0
        match None if at is None else at.phase:
            case "gather":
                self._reach_before(ShardExchange, "gather")
            case "scatter":
                self._reach_before(ShardExchange, "scatter")
            case "snapshot":
                self._reach_before(Slot, "complete")
            case "optimizer":
                register_optimizer_step_post_hook(self._reach)
            case "backward":
                register_module_forward_hook(self._reach_in_backward)
            case None:
                pass

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step, self._num_times = step, 0
        if self._fatal is None and self._said.exists():
            self._fatal = int(self._said.read_text())

    def _reach(self, *_: object) -> None:
        if self._at is None or self._step != self._fatal or not self._is_meant(self._at.rank):
            return
        self._num_times += 1
        if self._num_times == AT_TIME[self._at.phase] and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_meant(self, rank: int | None) -> bool:
        own = self._session.rank
        return own != 0 if rank is None else own == rank

    def _reach_before(self, owner: type, name: str) -> None:
        call = getattr(owner, name)

        def reach_first(*args: Any, **kwargs: Any) -> Any:
            self._reach()
            return call(*args, **kwargs)

        setattr(owner, name, reach_first)

    def _reach_in_backward(self, module: nn.Module, _: object, output: torch.Tensor) -> None:
        if isinstance(module, nn.ReLU) and output.requires_grad:
            output.register_hook(self._reach)


def die_while_streaming(_keeper: object) -> None:
    """Have the Keeper that this is called in die in the middle of the next frame that it sends."""

    def send_half(connection: socket.socket, frame: memoryview, _before: object) -> None:
        connection.sendall(frame[: len(frame) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    peer_memory.send_frame = send_half
