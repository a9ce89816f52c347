"""Start the workers of a run that has none yet.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

import ray

from trainflow.config.job import JobConfig
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.placement import choose_members, count_slots
from trainflow.coordination.ray_drains import find_draining_nodes
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.errors import CapacityError

logger = logging.getLogger(__name__)

_PLACE_WITHIN_S = 60.0
_SAY_AFTER_S = 3.0


async def launch_workers(
    job: JobConfig, pool: WorkerPool, nodes: NodeWatch, record: RunRecord
) -> frozenset[str]:
    """Reserve bundles, put a Keeper on each node and a worker in each bundle.

    Returns:
        The ids of the workers that are to form the first epoch.

    Raises:
        CapacityError: fewer workers fit on the cluster than ``workers.minimum``.
    """
    wanted = job.workers.target + job.workers.spares
    draining = await asyncio.to_thread(_find_draining)
    known = await asyncio.to_thread(ray.nodes)
    nodes_there = [each for each in known if each["Alive"] and each["NodeID"] not in draining]
    alive = [node["Resources"] for node in nodes_there]
    slots = count_slots(alive, job.workers.resources.model_dump())
    if slots < job.workers.minimum:
        raise CapacityError(
            f"workers.minimum: got {job.workers.minimum}, expected at most {slots}, which is how "
            f"many workers with {job.workers.resources.model_dump()} fit on the cluster's "
            f"{len(alive)} nodes; lower workers.minimum or workers.resources, or add nodes"
        )
    if slots < wanted:
        text = (
            f"{wanted} workers with spares were asked for, {slots} fit on the cluster: others "
            "start once there is room"
        )
        record.add_event("reduced", text, wanted=wanted, slots=slots)
    loop = asyncio.get_running_loop()
    text = f"no room for {min(slots, wanted)} workers yet: another job holds the resources"
    said_later = loop.call_later(_SAY_AFTER_S, record.add_event, "waiting", text)
    try:
        async with asyncio.timeout(_PLACE_WITHIN_S):  # `wait_for` may swallow that it is cancelled
            await pool.bundles.reserve(min(slots, wanted))
    except TimeoutError as error:
        raise CapacityError(
            f"workers: got no room for {min(slots, wanted)} workers within "
            f"{_PLACE_WITHIN_S:.0f} s, expected it to be free: another job holds the cluster's "
            "resources; stop it or wait"
        ) from error
    finally:
        said_later.cancel()
    bundle_nodes = await _find_placed(pool)
    await nodes.ensure(set(bundle_nodes.values()))
    await pool.meet_keepers(set(bundle_nodes.values()))
    members = choose_members(bundle_nodes, job.workers.target)
    designated: set[str] = set()
    launched: list[str] = []
    for bundle in sorted(bundle_nodes):
        entry = await pool.spawn(bundle, f"1.{bundle}", rehearse=bundle not in members)
        if entry is None:  # the run ends
            continue
        launched.append(entry.worker_id)
        if bundle in members:
            designated.add(entry.worker_id)
    text = f"{len(bundle_nodes)} workers on {len(set(bundle_nodes.values()))} nodes"
    record.add_event("launched", text, workers=launched)
    return frozenset(designated)


async def _find_placed(pool: WorkerPool) -> Mapping[int, str]:
    """Return the node of each bundle, however long Ray's head takes to tell."""
    while True:
        try:
            return await pool.look_at_bundles()
        except TimeoutError as error:
            logger.warning("%s: where bundles are is asked again", error)


def _find_draining() -> Collection[str]:
    """Return the nodes on which Ray starts nothing any more, as far as it tells."""
    try:
        return find_draining_nodes().keys()
    except Exception:
        logger.exception("Ray does not tell which nodes it drains")
        return ()
