"""Is training healthy, and what did failures cost? Pure."""

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

_NOW = (
    Panel(
        "Goodput",
        "What share of the workers' time went into steps that count, since each job began? Spares "
        "that stand by lower it, too.",
        curve(ASK.latest(metrics.GOODPUT)),
        number(Unit.SHARE, Limits(yellow=0.9, red=0.7)),
    ),
    Panel(
        "Members, of those asked for",
        "Does each job train with as many workers as it asks for?",
        curve(f"{ASK.latest(metrics.WORLD_SIZE)} / {ASK.latest(metrics.TARGET_WORLD_SIZE)}"),
        number(Unit.SHARE, Limits(yellow=1.0, red=0.75)),
    ),
    Panel(
        "Spares",
        "Is a warm worker there for the next loss?",
        curve(ASK.latest(metrics.SPARES)),
        number(),
    ),
    Panel(
        "Age of the newest checkpoint",
        "How much would be lost if every machine were?",
        curve(ASK.latest(metrics.CHECKPOINT_AGE)),
        number(Unit.SECONDS, Limits(yellow=1800, red=3600), absent="no checkpoint yet"),
    ),
)

_PROGRESS = (
    Panel(
        "Loss",
        "Does each job learn?",
        curve(ASK.latest(metrics.LOSS)),
    ),
    Panel(
        "Steps a second",
        "How fast does each job go, recoveries included? A dip is one.",
        curve(ASK.rate(metrics.STEPS_COMMITTED)),
    ),
)

_COST = (
    Panel(
        "Failures",
        "What has been lost, when, and why?",
        curve(ASK.new(metrics.FAILURES, "cause"), "{{job}} {{cause}}"),
    ),
    Panel(
        "What failures cost",
        "How much of the workers' time went into recovering, into steps that have to be done "
        "again, and into waiting for room? Seconds of all workers, in the time that a point spans.",
        curve(
            ASK.new(metrics.BADPUT, "cause", where='cause=~"recovery_.*|wasted|waiting"'),
            "{{job}} {{cause}}",
        ),
        Look(unit=Unit.SECONDS, is_stacked=True),
    ),
    Panel(
        "A recovery",
        "How long does training stand still when something is lost? Each point is the mean of "
        "those that ended then.",
        curve(f"{ASK.new(metrics.RECOVERY_SECONDS)} / ({ASK.new(metrics.RECOVERIES)} > 0)"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Odd losses and gradients",
        "Has anything been found in losses and gradient norms that should not be there?",
        curve(ASK.new(metrics.ANOMALIES, "kind"), "{{job}} {{kind}}"),
    ),
)

_SEEN = f"max by (job) ({ASK.last_seen(metrics.COORDINATOR_TIMESTAMP, '15m')})"
_ENDED = ASK.come_and_gone(metrics.RUNS_ENDED, window="20m")

_SIGNS = (
    Panel(
        "Silence of the coordinator",
        "Does each run's coordinator look after it? It does twice a second; what is shown is up to "
        "some twenty seconds late, and as wrong as its clock is beside Prometheus's. One that is "
        "gone without word of an end is shown for a quarter of an hour.",
        curve(f"time() - ({_SEEN} unless {_ENDED} > 0)"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Since the newest step",
        "Does each run get on? Before the first step, the time since it began.",
        curve(ASK.latest(metrics.STEP_AGE)),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Detectors that are off",
        "Is there something that nobody looks for, since what looks for it has failed?",
        curve(ASK.latest(metrics.DETECTOR_OFF, "detector"), "{{job}} {{detector}}"),
    ),
    Panel(
        "Steps lost and not applied",
        "Which work did not count? Lost steps had to be done again; skipped ones were not finite.",
        (
            Curve(ASK.new(metrics.STEPS_LOST), "{{job}} lost"),
            Curve(ASK.new(metrics.STEPS_SKIPPED), "{{job}} skipped"),
        ),
    ),
)

OVERVIEW = Dashboard(
    "trainflow-overview",
    "TrainFlow / Overview",
    "Is training healthy, and what did failures cost? For all jobs at once.",
    {"Now": _NOW, "Progress": _PROGRESS, "What failures cost": _COST, "Signs of life": _SIGNS},
    may_show_all=True,
)
