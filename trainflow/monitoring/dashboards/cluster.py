"""What do the nodes do, and who holds everyone up? Pure.

What nodes do is told by Ray's own metrics, which are no part of the table: `RAY_METRICS` names
those that are asked for, and a test that Ray has them. Of a thousand nodes only how they lie is
drawn, and the twenty that stand out.
"""

from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.panel import (
    ASK,
    Chart,
    Curve,
    Dashboard,
    Look,
    Panel,
    Unit,
    curve,
)
from trainflow.monitoring.metric import HOST_LABEL

RAY_METRICS = (
    "node_cpu_utilization",
    "node_disk_utilization_percentage",
    "node_gpus_utilization",
    "node_gram_available",
    "node_gram_used",
    "node_mem_shared_bytes",
    "node_mem_total",
    "node_mem_used",
    "node_network_receive_speed",
    "node_network_send_speed",
)
"""Of each node, by Ray's own names."""

_MOST_NAMED = 20

_PERCENTS = range(10, 100, 10)
"""Bounds of a heatmap's rows, the last without one."""

_SPREAD = (("p50", "quantile(0.5, {0})"), ("p99", "quantile(0.99, {0})"), ("max", "max({0})"))


def _of_node(name: str, combine: str = "sum") -> str:
    """Return one value a node."""
    assert name in RAY_METRICS, name
    return f"{combine} by (instance) (ray_{name})"


def _spread(query: str) -> tuple[Curve, ...]:
    """Return how values of all nodes lie: three series, however many nodes there are."""
    low = Curve(f"min({query})", "min")
    return (low, *(Curve(ask.format(query), name) for name, ask in _SPREAD))


def _density(query: str) -> tuple[Curve, ...]:
    """Return how many nodes are at most at each of `_PERCENTS`, as a histogram's buckets are."""
    below = [f"count({query} <= {bound}) or 0 * count({query})" for bound in _PERCENTS]
    counts = zip((*_PERCENTS, "+Inf"), (*below, f"count({query})"), strict=True)
    rows = [f'label_replace({count}, "le", "{bound}", "", "")' for bound, count in counts]
    return curve(" or ".join(rows), "{{le}}")


def _named(query: str) -> tuple[Curve, ...]:
    return curve(f"sort_desc(topk({_MOST_NAMED}, {query}))", "{{instance}}")


_CPU = _of_node("node_cpu_utilization", "max")
_GPU = _of_node("node_gpus_utilization", "avg")
_MEMORY = f"{_of_node('node_mem_used')} / {_of_node('node_mem_total')}"
_GPU_USED, _GPU_FREE = _of_node("node_gram_used"), _of_node("node_gram_available")
_GPU_MEMORY = f"{_GPU_USED} / ({_GPU_USED} + {_GPU_FREE})"
_SHARED = _of_node("node_mem_shared_bytes")
_SENT = _of_node("node_network_send_speed")
_RECEIVED = _of_node("node_network_receive_speed")
_DISK = _of_node("node_disk_utilization_percentage", "max")

_RANKS = (
    Panel(
        "What ranks compute in a step",
        "Does one rank hold the others up? Then max is far above p50; the event `straggler` names "
        "it and its node. Of ranks that are dealt less than others as if they were dealt as much. "
        "Four series, however many ranks there are.",
        curve(ASK.latest(metrics.RANK_COMPUTE, "statistic"), "{{statistic}}"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "How much the slowest costs",
        "How many times as long as half of the others does the slowest rank take, if all were "
        "dealt as much?",
        curve(
            ASK.latest(metrics.RANK_COMPUTE, where='statistic="max"')
            + " / "
            + ASK.latest(metrics.RANK_COMPUTE, where='statistic="p50"'),
            "slowest over median",
        ),
    ),
)

_SLOWEST = (
    Panel(
        "The nodes that hold the others up",
        "Does the slowest rank of one node take longer than those of all others? Of the five nodes "
        "where it takes longest, if all were dealt as much.",
        curve(f"{ASK.latest(metrics.SLOW_NODE_COMPUTE, 'place')} > 0", "place {{place}}"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Their slowest ranks",
        "Which ranks are they? `trainflow workers` and the job's page tell on which node each is. "
        "A curve that stays is a node that is slow; one that jumps is chance.",
        curve(f"{ASK.latest(metrics.SLOW_NODE_RANK, 'place')} >= 0", "place {{place}}"),
    ),
    Panel(
        "Nodes that straggle",
        "Which node holds everyone up, for so long that it isn't chance? How many times as long as "
        "usual its slowest rank computed when that was found.",
        curve(ASK.latest(metrics.STRAGGLER, HOST_LABEL), "{{host}}"),
        Look(absent="no node"),
    ),
)

_NODES = (
    Panel(
        "CPU, how many nodes do how much",
        "Do all nodes do alike, and if not, since when? The darker, the more nodes; the bars below "
        "name those that stand apart.",
        _density(_CPU),
        Look(Chart.DENSITY, Unit.PERCENT),
    ),
    Panel(
        "GPU, how many nodes do how much",
        "Are devices of some nodes idle while those of others work? Mean of a node's devices.",
        _density(_GPU),
        Look(Chart.DENSITY, Unit.PERCENT, absent="no GPU"),
    ),
    Panel(
        "CPU, over all nodes",
        "Do some nodes have much more to do than most?",
        _spread(_CPU),
        Look(unit=Unit.PERCENT),
    ),
    Panel(
        "CPU, the busiest nodes",
        "Which nodes are they?",
        _named(_CPU),
        Look(Chart.BARS, Unit.PERCENT),
    ),
    Panel(
        "GPU, over all nodes",
        "Are devices busy, and all alike? Mean of a node's devices.",
        _spread(_GPU),
        Look(unit=Unit.PERCENT, absent="no GPU"),
    ),
    Panel(
        "GPU, the least busy nodes",
        "Which nodes wait for others, or do nothing?",
        curve(f"sort(bottomk({_MOST_NAMED}, {_GPU}))", "{{instance}}"),
        Look(Chart.BARS, Unit.PERCENT, absent="no GPU"),
    ),
    Panel(
        "GPU memory, the fullest nodes",
        "Is the next allocation about to fail?",
        _named(_GPU_MEMORY),
        Look(Chart.BARS, Unit.SHARE, absent="no GPU"),
    ),
    Panel(
        "Memory, the fullest nodes",
        "Is a worker about to be killed for memory?",
        _named(_MEMORY),
        Look(Chart.BARS, Unit.SHARE),
    ),
    Panel(
        "Shared memory, over all nodes",
        "How much do snapshots take? They lie in shared memory.",
        _spread(_SHARED),
        Look(unit=Unit.BYTES),
    ),
    Panel(
        "Disk, the fullest nodes",
        "Is a disk about to be full? Runs are recorded on the head's.",
        _named(_DISK),
        Look(Chart.BARS, Unit.PERCENT),
    ),
    Panel(
        "Sent, over all nodes",
        "Does the network carry as much for each node?",
        _spread(_SENT),
        Look(unit=Unit.BYTES_A_SECOND),
    ),
    Panel(
        "Received, the nodes with most",
        "Is one node's link the bottleneck?",
        _named(_RECEIVED),
        Look(Chart.BARS, Unit.BYTES_A_SECOND),
    ),
)

CLUSTER = Dashboard(
    "trainflow-cluster",
    "TrainFlow / Cluster",
    "What do the nodes do, and who holds everyone up? Drawn alike of two nodes and of a thousand.",
    {"Ranks": (*_RANKS, *_SLOWEST), "Nodes": _NODES},
)
