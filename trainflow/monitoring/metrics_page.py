"""Make docs/metrics.md from the table of metrics.

    python -m trainflow.monitoring.metrics_page > docs/metrics.md

Pure, but for that last line.
"""

import sys
from collections.abc import Iterator, Mapping

from trainflow.monitoring import metrics
from trainflow.monitoring.metric import HOST_LABEL, JOB_LABEL, Kind, Metric

_HEAD = """\
# Metrics

Made from the table in [trainflow/monitoring/metrics.py](../trainflow/monitoring/metrics.py) by
`python -m trainflow.monitoring.metrics_page > docs/metrics.md`; a test fails while the two differ.

The coordinator exports them through Ray's metrics agent on its node. The agents' addresses Ray's
dashboard writes for Prometheus into `prom_metrics_service_discovery.json` of its session folder;
heads of `ray start --head` (in `/tmp/ray/session_latest`) and `trainflow serve` have it. Of a head
that TrainFlow has started `TRAINFLOW_HOME/head.json` names the `temp_dir`, another one each time;
its session folder is `session_latest` there. The head that `trainflow run` starts by itself has no
dashboard, and so no such file: the port of its agent is in `metrics_export_port_NODE` of that
folder. A value is there some ten seconds later. Each has the label `{job}`, the job's id, beside
those named here (and Ray's own: component, node, session). None has one a rank: a run makes at most
{num_series} series at once, however many ranks it has.

Gauges are shown anew each second for as long as they hold, since Ray's agent forgets what it has
not heard of for 20 s (twice Ray's `metrics_report_interval_ms`): they are gone so soon after the
coordinator. Leave that interval at 2 s or more; with less, gauges may be missing now and then, as
Ray may be told anew only after it has forgotten. What the coordinator has counted is brought to the
agent as it goes, and stays there as long as the node.

When a coordinator is restarted, its counters begin as new series beside those of the one before,
which Ray's label `WorkerId` tells apart and which stay as they are: it is their sum that goes on,
less what a killed coordinator had counted in its last eleven seconds. `badput_seconds_total` lacks
what passed until the new one began as well. Panels and alerts ask for sums.
Of the series above those of counters so come once for each restart, as long as the node is there.
"""

SECTIONS: Mapping[str, tuple[Metric, ...]] = {
    "What training comes to": (
        metrics.LOSS,
        metrics.GRADIENT_NORM,
        metrics.LEARNING_RATE,
        metrics.STEP,
        metrics.STEP_AGE,
        metrics.STEPS_COMMITTED,
        metrics.STEPS_SKIPPED,
        metrics.STEPS_LOST,
        metrics.SAMPLES,
        metrics.TARGETS,
        metrics.TOKENS,
        metrics.ANOMALIES,
        metrics.ANOMALY_ACTIVE,
        metrics.REWINDS,
    ),
    "Where the time goes": (
        metrics.STEP_DURATION,
        metrics.PHASE_DURATION,
        metrics.PHASE_SECONDS,
        metrics.RANK_COMPUTE,
        metrics.SLOW_NODE_COMPUTE,
        metrics.SLOW_NODE_RANK,
        metrics.STRAGGLER,
        metrics.SHORTEST_WAIT,
        metrics.MFU,
        metrics.HFU,
        metrics.GOODPUT,
        metrics.BADPUT,
    ),
    "Communication": (
        metrics.WIRE_BYTES,
        metrics.GRADIENT_WIRE_BYTES,
        metrics.GRADIENT_PLAIN_BYTES,
        metrics.GRADIENT_SUM_SECONDS,
        metrics.LATENCY,
        metrics.RESIDUAL,
        metrics.SLOW_KERNELS,
    ),
    "Members, and what befalls them": (
        metrics.COORDINATOR_TIMESTAMP,
        metrics.RUNS_ENDED,
        metrics.WORLD_SIZE,
        metrics.TARGET_WORLD_SIZE,
        metrics.SPARES,
        metrics.TARGET_SPARES,
        metrics.EPOCHS,
        metrics.FAILURES,
        metrics.RECOVERIES,
        metrics.RECOVERY_DURATION,
        metrics.RECOVERY_SECONDS,
        metrics.COPY_LAG,
    ),
    "What workers take of their machines": (
        metrics.WORKER_MEMORY,
        metrics.DEVICE_MEMORY,
        metrics.DEVICE_BUSY,
    ),
    "What explains the run": (metrics.SINK_DROPPED, metrics.POSTS_DROPPED, metrics.DETECTOR_OFF),
    "Checkpoints": (
        metrics.CHECKPOINTS,
        metrics.CHECKPOINTS_SKIPPED,
        metrics.CHECKPOINT_STEP,
        metrics.CHECKPOINT_AGE,
        metrics.CHECKPOINT_BYTES,
    ),
}
"""All metrics, by what they tell of."""


def render_page() -> str:
    """Return the page, as Markdown."""
    num_series = sum(metric.num_series for metric in metrics.METRICS)
    return "\n".join([_HEAD.format(job=JOB_LABEL, num_series=num_series), *_render_sections()])


def _render_sections() -> Iterator[str]:
    for title, section in SECTIONS.items():
        yield f"## {title}\n"
        yield "| Name in Prometheus | Kind | Unit | Labels | Meaning |"
        yield "|---|---|---|---|---|"
        yield from map(_render_row, section)
        yield ""


def _render_row(metric: Metric) -> str:
    labels = "; ".join(
        f"`{name}`: {', '.join(f'`{value}`' for value in values)}"
        for name, values in metric.labels.items()
    )
    if metric.num_hosts:
        labels = f"`{HOST_LABEL}`: a node's address, of {metric.num_hosts} at once at most"
    unit = "" if metric.unit == "1" else metric.unit
    kind = metric.kind.value
    if metric.kind is Kind.HISTOGRAM:
        kind += f", {metric.buckets[0]:g} to {metric.buckets[-1]:g}"
    return f"| `{metric.shown_name}` | {kind} | {unit} | {labels} | {metric.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(render_page())
