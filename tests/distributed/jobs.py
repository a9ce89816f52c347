"""The job that the ranks run, small enough to be run often."""

from typing import Any

from trainflow.config.job import JobConfig

MAX_STEPS = 8
BATCH = 10


def make_job(*, world: int = 3, spares: int = 0, minimum: int = 1, **sections: Any) -> JobConfig:
    """Return a job of ``world`` members; ``sections`` change single settings of its sections.

    Ten samples a step in microbatches of three, three, three and one: ranks get unequal shares.
    """
    training = {"max_steps": MAX_STEPS, "global_batch_size": BATCH, "microbatch_size": 3, "seed": 5}
    return JobConfig.model_validate(
        {
            "name": "test",
            "entrypoint": "tests.distributed.training:train",
            "training": training | sections.get("training", {}),
            "data": {"dataset": "tests.distributed.training:Samples"},
            "workers": {"minimum": minimum, "target": world, "spares": spares}
            | sections.get("workers", {}),
            "communication": {"bucket_bytes": 1000} | sections.get("communication", {}),
            "parallel": sections.get("parallel", {}),
            "checkpoint": sections.get("checkpoint", {}),
            "monitoring": sections.get("monitoring", {}),
            "failures": sections.get("failures", {}),
        }
    )
