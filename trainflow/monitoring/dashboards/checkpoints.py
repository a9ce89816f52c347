"""What is kept of the state, and what does keeping it cost? Pure."""

from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.panel import (
    ASK,
    Curve,
    Dashboard,
    Limits,
    Look,
    Panel,
    Unit,
    curve,
    number,
)

_SNAPSHOT_S = ASK.rate(metrics.PHASE_SECONDS, where='phase="snapshot"')

_NOW = (
    Panel(
        "Age of the newest",
        "How much would be lost if every machine were?",
        curve(ASK.latest(metrics.CHECKPOINT_AGE)),
        number(Unit.SECONDS, Limits(yellow=1800, red=3600), absent="no checkpoint yet"),
    ),
    Panel(
        "Step of the newest",
        "From where would training go on?",
        curve(ASK.latest(metrics.CHECKPOINT_STEP)),
        number(absent="no checkpoint yet"),
    ),
    Panel(
        "Steps since",
        "How many steps would have to be done again?",
        curve(f"{ASK.latest(metrics.STEP)} - {ASK.latest(metrics.CHECKPOINT_STEP)}"),
        number(absent="no checkpoint yet"),
    ),
    Panel(
        "Skipped",
        "Were some that were due not made, in the time shown?",
        curve(ASK.new(metrics.CHECKPOINTS_SKIPPED, window="$__range")),
        number(limits=Limits(yellow=1, red=3)),
    ),
)

_KEEPING = (
    Panel(
        "Age",
        "Is one made as often as it should be? Each fall is a checkpoint.",
        curve(ASK.latest(metrics.CHECKPOINT_AGE)),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Made and skipped",
        "Does the store keep up? Skipped ones say that it was slow, or memory short.",
        (
            Curve(ASK.new(metrics.CHECKPOINTS), "made"),
            Curve(ASK.new(metrics.CHECKPOINTS_SKIPPED), "skipped"),
        ),
    ),
    Panel(
        "New bytes",
        "How much does the store grow by? Parts that have not changed are not written again.",
        curve(ASK.rate(metrics.CHECKPOINT_BYTES), "written"),
        Look(unit=Unit.BYTES_A_SECOND),
    ),
    Panel(
        "What snapshots cost a step",
        "How long does training stand still so that its state is copied?",
        curve(f"{_SNAPSHOT_S} / {ASK.rate(metrics.STEPS_COMMITTED)}", "seconds of a step"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Workers' time for checkpoints",
        "How much of the workers' time went into copying the state out? Seconds of all workers, in "
        "the time that a point spans.",
        curve(ASK.new(metrics.BADPUT, where='cause="checkpoint"'), "workers' seconds"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Lag of copies on other nodes",
        "How many steps would a sharded run go back by if a node were lost now?",
        curve(ASK.latest(metrics.COPY_LAG), "steps"),
        Look(absent="nothing is sharded"),
    ),
)

CHECKPOINTS = Dashboard(
    "trainflow-checkpoints",
    "TrainFlow / Checkpoints",
    "What is kept of the state, how old is it, and what does keeping it cost?",
    {"Now": _NOW, "Keeping the state": _KEEPING},
)
