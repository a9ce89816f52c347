"""What decides which bits torch computes in a process, beside the training function.

Process: every rank, also one of a replay.
"""

import torch

from trainflow.config.job import JobConfig


def settle_numerics(job: JobConfig) -> None:
    """Have torch use the threads that the job gives a worker, and the kernels that it asks for."""
    torch.set_num_threads(max(1, int(job.workers.resources.CPU)))
    torch.use_deterministic_algorithms(job.training.deterministic)
