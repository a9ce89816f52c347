"""How tensors cross the wire. torch, no Ray.

`ddp_comm_hook` is for those who train with torch's own DistributedDataParallel.
"""

from trainflow.communication.ddp_hook import ddp_comm_hook

__all__ = ["ddp_comm_hook"]
