"""One torchft replica group of one rank: the documented DDP loop, with its events written down.

Process: one a replica, started and restarted by `torchft_ddp`.  Blocks: in torchft's collectives
and quorums, never longer than the timeouts of `ReplicaSettings`.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket, TCPStore
from torch.futures import Future
from torch.optim import Optimizer
from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
from torchft.manager import WorldSizeMode
from torchft.optim import OptimizerWrapper

from benchmarks import workload
from benchmarks.peers.events import STEP, EventLog
from benchmarks.peers.processes import become_measured


@dataclass(frozen=True)
class ReplicaSettings:
    """What torchft lets a training script tune.

    Attributes:
        min_replicas: torchft commits no step with fewer; under FIXED_WITH_SPARES also the most
            that contribute gradients.
        fixed_with_spares: That mode; else DYNAMIC, where every replica contributes.
        collective_timeout_s: gloo tells only some survivors of a death; the others learn of it by
            this timeout alone, so it bounds recovery. It must exceed the longest wait of a healthy
            step.
        repaired: Use `RepairedDDP`; without it one death ends every replica.
        rpc_timeout_s: Quorum, commit vote and state transfer.
        heartbeat_interval_s: Of a replica to the Lighthouse.
    """

    min_replicas: int
    fixed_with_spares: bool
    collective_timeout_s: float
    repaired: bool = True
    rpc_timeout_s: float = 30.0
    heartbeat_interval_s: float = 0.05


class RepairedDDP(DistributedDataParallel):
    """torchft's DDP with a communication hook that survives a failed all_reduce.

    The released hook looks inside the future of the work it has waited for. After a failure there
    is nothing inside (AssertionError, and AttributeError from the next bucket on), so an exception
    leaves ``backward`` and every survivor dies with the replica that was killed. The buffer is
    reduced in place, so a completed future is all that DDP needs; the Manager holds the failure.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: GradBucket) -> Future[Tensor]:
        state.allreduce(bucket.buffer()).wait()
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done


class ObservedGloo(ProcessGroupGloo):
    """torchft's gloo group, writing down when a quorum has been reached and its group is up."""

    def __init__(self, timeout: timedelta, log: EventLog) -> None:
        super().__init__(timeout=timeout)
        self._log = log
        self.step = 0

    def configure(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  torchft's own signature
        """Rebuild the group for a new quorum, whose id the Manager passes as the fifth argument.

        Thread: the Manager's quorum thread.
        """
        self._log.generation = args[4]
        self._log.record("quorum", self.step)
        super().configure(*args, **kwargs)
        self._log.record("group", self.step)


def run_replica(slot: int, settings: ReplicaSettings, lighthouse: str, work_dir: Path) -> None:
    """Train until killed."""
    become_measured(work_dir / f"replica-{slot}.log")
    torch.set_num_threads(1)
    log = EventLog(work_dir)
    group = ObservedGloo(timedelta(seconds=settings.collective_timeout_s), log)
    model = workload.build_model(seed=0)
    inner_optimizer = workload.make_optimizer(model.parameters())
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mode = WorldSizeMode.FIXED_WITH_SPARES if settings.fixed_with_spares else WorldSizeMode.DYNAMIC
    manager = Manager(
        pg=group,
        load_state_dict=None,
        state_dict=None,
        min_replica_size=settings.min_replicas,
        world_size_mode=mode,
        timeout=timedelta(seconds=settings.rpc_timeout_s),
        quorum_timeout=timedelta(seconds=settings.rpc_timeout_s),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{slot}",
        heartbeat_interval=timedelta(seconds=settings.heartbeat_interval_s),
    )
    _register_state(manager, model, inner_optimizer)
    wrapped = (RepairedDDP if settings.repaired else DistributedDataParallel)(manager, model)
    optimizer = OptimizerWrapper(manager, inner_optimizer)
    while True:
        group.step = manager.current_step()
        _train_step(manager, wrapped, optimizer, slot, log)


def _register_state(manager: Manager, model: nn.Module, optimizer: Optimizer) -> None:
    """Say what a replica that joins late must fetch from one that is up to date."""

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager.register_state_dict_fn("training", load_state_dict, state_dict)


def _train_step(
    manager: Manager, model: nn.Module, optimizer: OptimizerWrapper, slot: int, log: EventLog
) -> None:
    """Try one step; write it down as finished only if torchft has committed it.

    A spare, or a replica that has just fetched its state, contributed nothing: rank -1.
    """
    optimizer.zero_grad()
    step = manager.current_step()
    workload.loss_of(model, workload.make_batch(step, slot)).backward()
    if manager.errored():
        log.record("error", step)
    num_committed = manager.batches_committed()
    optimizer.step()
    if manager.batches_committed() > num_committed:
        rank = manager.participating_rank()
        log.rank = rank if rank is not None and manager.is_participating() else -1
        log.world_size = manager.num_participants()
        log.record(STEP, manager.current_step())
