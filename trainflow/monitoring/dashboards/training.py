"""What does a job learn, and where does its time go? Pure."""

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
    number,
)

_STEPS = ASK.rate(metrics.STEPS_COMMITTED)
_SECONDS = ASK.rate(metrics.PHASE_SECONDS)
_BUCKETS = ASK.series(metrics.STEP_DURATION, suffix="_bucket")

_NOW = (
    Panel("Step", "How far is it?", curve(ASK.latest(metrics.STEP)), number()),
    Panel(
        "Time of a step",
        "How long does a step take, all phases together?",
        curve(f"{_SECONDS} / {_STEPS}"),
        number(Unit.SECONDS),
    ),
    Panel(
        "Tokens a second",
        "How much does it read?",
        curve(ASK.rate(metrics.TOKENS)),
        number(absent="not known of this model"),
    ),
    Panel(
        "MFU",
        "What share of the devices' peak do the model's own operations come to?",
        curve(ASK.latest(metrics.MFU)),
        number(Unit.SHARE, absent="not known of this model or device"),
    ),
)

_LEARNING = (
    Panel("Loss", "Does it learn?", curve(ASK.latest(metrics.LOSS)), Look(width=24)),
    Panel(
        "Gradient norm",
        "Is training stable? Before clipping; the axis is logarithmic.",
        curve(ASK.latest(metrics.GRADIENT_NORM)),
        Look(is_logarithmic=True),
    ),
    Panel(
        "Learning rate",
        "Is the schedule where it should be?",
        curve(ASK.latest(metrics.LEARNING_RATE)),
    ),
    Panel(
        "Odd losses and gradients",
        "When was something found that should not be there, of what kind, and did the job go back?",
        (
            Curve(ASK.new(metrics.ANOMALIES, "kind"), "{{kind}}"),
            Curve(ASK.new(metrics.REWINDS), "gone back"),
        ),
    ),
    Panel(
        "Odd now",
        "What has been found and is not over yet? 1 while it goes on.",
        curve(ASK.latest(metrics.ANOMALY_ACTIVE, "kind"), "{{kind}}"),
    ),
    Panel(
        "Steps not applied",
        "What share of steps had a loss or a gradient that was not finite, or was too large?",
        curve(f"{ASK.new(metrics.STEPS_SKIPPED)} / {ASK.new(metrics.STEPS_COMMITTED)}"),
        Look(unit=Unit.SHARE),
    ),
)

_TIME = (
    Panel(
        "Where a step's time goes",
        "Which phase should be made faster? Seconds of each in a mean step, as rank 0 spends them.",
        curve(
            f"{ASK.rate(metrics.PHASE_SECONDS, 'phase')} / on (job) group_left () {_STEPS}",
            "{{phase}}",
        ),
        Look(unit=Unit.SECONDS, is_stacked=True),
    ),
    Panel(
        "How steps' times lie",
        "Are some steps much slower than most?",
        curve(f"sum by (le) (rate({_BUCKETS}[$__rate_interval]))", "{{le}}"),
        Look(Chart.DENSITY, Unit.SECONDS),
    ),
    Panel(
        "Half, and 99 in 100 steps",
        "How slow are the slowest steps? As exactly as the buckets are.",
        (
            Curve(ASK.quantile(0.5, metrics.STEP_DURATION), "p50"),
            Curve(ASK.quantile(0.99, metrics.STEP_DURATION), "p99"),
        ),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "How well devices are used",
        "Does a change of the job make better use of the hardware? HFU counts what is computed "
        "again to save memory.",
        (
            Curve(ASK.latest(metrics.MFU), "MFU"),
            Curve(ASK.latest(metrics.HFU), "HFU"),
        ),
        Look(unit=Unit.SHARE, absent="not known of this model or device"),
    ),
    Panel(
        "Memory of workers",
        "Does some worker's process grow, or is one near what its machine has?",
        curve(ASK.latest(metrics.WORKER_MEMORY, "statistic"), "{{statistic}}"),
        Look(unit=Unit.BYTES),
    ),
    Panel(
        "Memory of devices",
        "How near are workers' devices to running out of memory?",
        curve(ASK.latest(metrics.DEVICE_MEMORY, "statistic"), "{{statistic}}"),
        Look(unit=Unit.BYTES, absent="no GPUs, or no NVML"),
    ),
    Panel(
        "How busy devices are",
        "Do devices wait for something, and some more than others?",
        curve(ASK.latest(metrics.DEVICE_BUSY, "statistic"), "{{statistic}}"),
        Look(unit=Unit.SHARE, absent="no GPUs, or no NVML"),
    ),
    Panel(
        "Samples and targets a second",
        "How much does it get through, whatever the world's size?",
        (
            Curve(ASK.rate(metrics.SAMPLES), "samples"),
            Curve(ASK.rate(metrics.TARGETS), "targets"),
        ),
    ),
    Panel(
        "Points that curves elsewhere lack",
        "Do TensorBoard, Weights & Biases and MLflow have all of it?",
        curve(ASK.new(metrics.SINK_DROPPED, "sink"), "{{sink}}"),
    ),
    Panel(
        "Events that were not posted",
        "Has whoever goes by the webhook, or by marks in Grafana, been told of everything?",
        curve(ASK.new(metrics.POSTS_DROPPED, "receiver"), "{{receiver}}"),
    ),
)

TRAINING = Dashboard(
    "trainflow-training",
    "TrainFlow / Training",
    "What does a job learn, and where does its time go? For whoever wrote it.",
    {"Now": _NOW, "Learning": _LEARNING, "Time": _TIME},
)
