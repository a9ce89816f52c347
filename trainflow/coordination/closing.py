"""What is left to do once a run has ended, whatever its end: nothing is lost, nothing stays behind.

Process: coordinator.  Thread: its event loop.
"""

from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.worker_pool import WorkerPool

_CLOSE_WITHIN_S = 3.0
_CLEAN_WITHIN_S = 15.0


async def close_run(
    ending: Ending, control: EpochControl, pool: WorkerPool, nodes: NodeWatch, kept: KeptState
) -> None:
    """End the workers, see checkpoints that are on their way into the store, and clean up nodes.

    A run that succeeds has waited for its last checkpoint. One that fails makes none, and one that
    is stopped may have been told so by a coordinator that came when its members had left: what its
    Keepers hold is not in the store yet.
    """
    control.close()
    await pool.close(_CLOSE_WITHIN_S)
    if ending.state is not RunState.SUCCEEDED:
        await nodes.wait_heard()
        await kept.wait_coming()
    await nodes.close(_CLEAN_WITHIN_S)
    await kept.close()
