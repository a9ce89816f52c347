"""Keep Ray's own words on every death out of what a driver prints: the run's events tell of it.

For each worker or node that dies Ray has its drivers print a paragraph of causes and flags, on
stdout, between two lines of the run's own. There is no public switch but an environment variable,
RAY_DEDUP_LOGS_SKIP_REGEX, which is read when Ray is imported and inherited by all that is started;
this sets what it would set, in this process.

Process: driver.  Blocks: never.
"""

import re

from ray._private import ray_logging

_ON_DEATHS = re.compile(
    r"^A worker died or was killed while executing a task"
    r"|^The node with node id: .* marked dead"
    r"|^Raylet is terminated\. Termination is unexpected"  # with 20 lines of its log
)


def leave_deaths_out() -> None:
    """Have this process print none of Ray's messages about dead workers and nodes.

    Whoever has set that variable has chosen what is left out.
    """
    if ray_logging.stdout_deduplicator.skip_re is None:
        ray_logging.stdout_deduplicator.skip_re = _ON_DEATHS
