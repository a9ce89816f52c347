"""Tell data that doesn't come from workers that hang in reading it. Pure."""

from collections.abc import Mapping

from trainflow.coordination.hang_detection import Limits, Progress
from trainflow.epochs import Phase


def find_held_up(
    members: Mapping[str, Progress], node_of: Mapping[str, str], limits: Limits
) -> frozenset[str]:
    """Return the members that wait for data, if where it comes from is to blame, and none of them.

    That is if several stand still in reading, on several nodes, or on the only one; or all do.
    Where one alone does, or all on one of several nodes, it is that worker, or that node.

    Args:
        members: progress of those that live, by worker id.
        node_of: where each of them is.
        limits: for how long a step may stand still. Half of it is standing still here: not all
            come to their data in the same moment.
    """
    standing = find_reading(members, limits)
    is_of_one_worker = len(standing) == 1 < len(members)
    nodes, all_nodes = ({node_of[each] for each in some} for some in (standing, members))
    is_of_one_node = len(nodes) == 1 < len(all_nodes)
    return frozenset() if is_of_one_worker or is_of_one_node else standing


def find_reading(members: Mapping[str, Progress], limits: Limits) -> frozenset[str]:
    """Return the members that have waited for data for half of what a step may, or longer."""
    return frozenset(
        worker_id
        for worker_id, progress in members.items()
        if progress.phase is Phase.DATA
        and not progress.is_warming_up
        and progress.pulse_age_s <= limits.hang_s
        and progress.progress_age_s > limits.step_s(progress.epoch) / 2
    )
