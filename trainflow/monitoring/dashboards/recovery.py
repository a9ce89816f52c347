"""What is lost, how long does it take to go on, and what does it all cost? Pure."""

from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.panel import (
    ASK,
    Chart,
    Curve,
    Dashboard,
    Limits,
    Look,
    Panel,
    Unit,
    curve,
    number,
)

_RECOVERIES = ASK.new(metrics.RECOVERIES, window="$__range")

_NOW = (
    Panel(
        "Goodput so far",
        "What share of the workers' time went into steps that count?",
        curve(ASK.latest(metrics.GOODPUT)),
        number(Unit.SHARE, Limits(yellow=0.9, red=0.7)),
    ),
    Panel(
        "Recoveries",
        "How often was training interrupted, in the time shown?",
        curve(_RECOVERIES),
        number(),
    ),
    Panel(
        "A recovery took",
        "How long did training stand still each time, in the time shown?",
        curve(f"{ASK.new(metrics.RECOVERY_SECONDS, window='$__range')} / ({_RECOVERIES} > 0)"),
        number(Unit.SECONDS),
    ),
    Panel(
        "Steps lost in all",
        "How many steps had to be done again, in the time shown?",
        curve(ASK.new(metrics.STEPS_LOST, window="$__range")),
        number(),
    ),
)

_RECOVERING = (
    Panel(
        "Failures, by cause",
        "What is lost, and why?",
        curve(ASK.new(metrics.FAILURES, "cause"), "{{cause}}"),
    ),
    Panel(
        "Recoveries, by phase",
        "Which phase takes long? decide: until members are asked; form: until they are together; "
        "heal: until all hold the state; step: until all have done one.",
        curve(
            f"{ASK.new(metrics.RECOVERY_SECONDS, 'phase')} "
            f"/ on (job) group_left () ({ASK.new(metrics.RECOVERIES)} > 0)",
            "{{phase}}",
        ),
        Look(unit=Unit.SECONDS, is_stacked=True),
    ),
    Panel(
        "99 in 100 recoveries, by phase",
        "How long does a phase take at worst? As exactly as the buckets are.",
        curve(ASK.quantile(0.99, metrics.RECOVERY_DURATION, "phase"), "{{phase}}"),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Epochs formed",
        "How often did the members change, planned changes included?",
        curve(ASK.new(metrics.EPOCHS), "epochs"),
    ),
    Panel(
        "Members and spares",
        "Does the run get back what it lost?",
        (
            Curve(ASK.latest(metrics.WORLD_SIZE), "members"),
            Curve(ASK.latest(metrics.TARGET_WORLD_SIZE), "members asked for"),
            Curve(ASK.latest(metrics.SPARES), "spares"),
            Curve(ASK.latest(metrics.TARGET_SPARES), "spares asked for"),
        ),
    ),
    Panel(
        "Steps lost",
        "Did recoveries cost steps that were committed?",
        curve(ASK.new(metrics.STEPS_LOST), "lost"),
    ),
)

_GOODPUT = (
    Panel(
        "What workers do that does not count",
        "Where does the workers' time go? Seconds of all workers, in the time that a point spans; "
        "`idle` are spares that stand by.",
        curve(ASK.new(metrics.BADPUT, "cause"), "{{cause}}"),
        Look(unit=Unit.SECONDS, width=24, is_stacked=True),
    ),
    Panel(
        "Cost so far, by cause",
        "Which cause has cost most workers' time since this head began?",
        curve(f"sort_desc({ASK.total(metrics.BADPUT, 'cause')})", "{{cause}}"),
        Look(Chart.BARS, Unit.SECONDS),
    ),
    Panel(
        "Goodput",
        "Is it getting better or worse?",
        curve(ASK.latest(metrics.GOODPUT), "so far"),
        Look(unit=Unit.SHARE),
    ),
)

RECOVERY = Dashboard(
    "trainflow-recovery",
    "TrainFlow / Recovery and goodput",
    "What is lost, how long does it take to go on, and what does it all cost?",
    {"Now": _NOW, "Recovering": _RECOVERING, "Goodput": _GOODPUT},
)
