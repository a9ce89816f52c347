"""What one worker of a stock TorchTrainer runs with a sharded model: FSDP2, and DCP checkpoints.

As Ray's and PyTorch's documentation have it: `fully_shard` on each layer and on the model, and
`torch.distributed.checkpoint` into a folder that every worker reports.

Process: a Ray Train worker.  Blocks: in gloo collectives and in `ray.train.report`, a barrier.
"""

from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks import workload
from benchmarks.peers.ray_train_worker import Training, begin, train_on

SEQUENCES_PER_RANK = 1


class ShardedTraining(Training):
    """FSDP2: every rank has a part of the state, and writes it."""

    def save(self, directory: Path, step: int) -> bool:
        """Write this rank's part."""
        dcp.save({**self._state(), "step": step}, checkpoint_id=directory)
        return True

    def load(self, directory: Path) -> int:
        """Read this rank's part."""
        state: dict[str, Any] = {**self._state(), "step": 0}
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return state["step"]

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def train_worker(config: dict[str, Any]) -> None:
    """Train on one worker until it is killed; Ray runs it again after each failure."""
    log = begin(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = workload.build_model(seed=0, size=config["size"])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train_on(ShardedTraining(model), log, SEQUENCES_PER_RANK)
