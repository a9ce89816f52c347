"""All alerts. Each names metrics by the table, and is tested both firing and silent by promtool.

A gauge is there while the coordinator is, so what is asked of gauges is asked of runs that go on.
Counters stay when a run is over: these are asked only what has come to them, and, where that is
judged over half an hour, of runs that go on.

Pure.
"""

from collections.abc import Mapping

from trainflow.monitoring import metrics
from trainflow.monitoring.alerts.members_rules import MEMBERS
from trainflow.monitoring.alerts.rule import AlertRule, Severity
from trainflow.monitoring.metric import HOST_LABEL
from trainflow.monitoring.promql import Queries

_ASK = Queries()

_LOSS_KINDS = 'kind=~"loss_.*"'
_NOT_FINITE = 'kind="not_finite"'
_NOT_STANDING_BY = 'cause!~"idle|start"'
_NORM_KINDS = 'kind=~"norm_.*"'
_OLD_CHECKPOINT_S = 3600
_LEAST_SKIPPED = 3
_MOST_SKIPPED_SHARE = 0.01
_MOST_BADPUT_SHARE = 0.2
_MOST_RISE = 1.5

_PHASES = _ASK.series(metrics.PHASE_SECONDS)
_STEPS = _ASK.series(metrics.STEPS_COMMITTED)
_GOES_ON = f" and on (job) {_ASK.latest(metrics.WORLD_SIZE)}"


def _step_time(window: str, before: str = "") -> str:
    """Return the mean of a step's seconds over a window, which may have ended a while ago."""
    offset = f" offset {before}" if before else ""
    spent = f"sum by (job) (rate({_PHASES}[{window}]{offset}))"
    return f"{spent} / sum by (job) (rate({_STEPS}[{window}]{offset}))"


def _new_or_active(where: str, *by: str) -> str:
    """Return what finds anomalies that have begun of late, over or not, and that go on."""
    begun = _ASK.new(metrics.ANOMALIES, *by, where=where, window="10m")
    return f"{begun} > 0 or {_ASK.latest(metrics.ANOMALY_ACTIVE, *by, where=where)} == 1"


TRAINING = (
    AlertRule(
        "LossNotFinite",
        Severity.CRITICAL,
        _new_or_active(_NOT_FINITE),
        0,
        "{{ $labels.job }}: a loss or a gradient norm is NaN or infinite",
        "It was so within the last 10 minutes, or is so yet; nothing was applied in these steps.",
        "`trainflow status` tells of the step, and of whether it goes on. A run fails by itself "
        "after `training.max_skipped_steps` of them in a row. Look at the learning rate and the "
        "samples of that step (`trainflow replay`); go on from a checkpoint before it.",
    ),
    AlertRule(
        "LossAnomaly",
        Severity.WARNING,
        _new_or_active(_LOSS_KINDS, "kind"),
        0,
        "{{ $labels.job }}: the loss is not what was expected: {{ $labels.kind }}",
        "It was found within the last 10 minutes, or goes on.",
        "The event `anomaly` has the step, by how far it is off, and since when; "
        "[Anomalies](monitoring.md#anomalies) says what each kind is. One spike that is over again "
        "needs nobody. A rise that stays is a reason to go back to a checkpoint.",
    ),
    AlertRule(
        "GradientNormAnomaly",
        Severity.INFO,
        _new_or_active(_NORM_KINDS, "kind"),
        0,
        "{{ $labels.job }}: the gradient's norm is not what was expected: {{ $labels.kind }}",
        "It was found within the last 10 minutes, or goes on.",
        "As a rule clipping has dealt with it (`training.clip_norm`). Often, and before a rise of "
        "the loss, it says that the learning rate is too high.",
    ),
    AlertRule(
        "StepsSkipped",
        Severity.WARNING,
        f"{_ASK.new(metrics.STEPS_SKIPPED, window='30m')} "
        f"/ {_ASK.new(metrics.STEPS_COMMITTED, window='30m')} > {_MOST_SKIPPED_SHARE:g}{_GOES_ON}",
        300,
        "{{ $labels.job }}: steps are not applied",
        "{{ $value | humanizePercentage }} of the steps of the last 30 minutes had a loss or a "
        "gradient that was not finite, or one that was skipped for its size.",
        "Under fp16 the scale of the loss is too high for a while after each rise; more than one "
        "in a hundred says that training is unstable. See also LossNotFinite.",
    ),
    AlertRule(
        "StepTimeRisen",
        Severity.WARNING,
        f"({_step_time('10m')}) / ({_step_time('1h', '15m')}) > {_MOST_RISE:g}",
        600,
        "{{ $labels.job }}: steps take longer than they did",
        "A step takes {{ $value | humanize }} times what it took in the hour before.",
        "The dashboard *Training* shows which phase has grown: `data` is the disk or the store, "
        "`communicate` the network, `wait` a rank that others wait for (see Straggler).",
    ),
    AlertRule(
        "Straggler",
        Severity.WARNING,
        f"{_ASK.latest(metrics.STRAGGLER, HOST_LABEL)} > {_MOST_RISE:g}",
        600,
        "{{ $labels.job }}: {{ $labels.host }} holds the others up",
        "When it was found, its slowest rank computed {{ $value | humanize }} times as long as the "
        "others would wait anyway; it still does.",
        "The event `straggler` names the rank, `straggler_over` says when that is over. "
        "`failures.replace_stragglers` gives its rank to a spare; else look at that node's clocks, "
        "temperature and neighbours.",
    ),
    AlertRule(
        "GoodputLow",
        Severity.WARNING,
        # What a recovery, or a wait for room, took may come at once, and be all there is so far.
        f"{_ASK.new(metrics.BADPUT, where=_NOT_STANDING_BY, window='30m')} / {30 * 60} "
        "/ max by (job) "
        f"(avg_over_time({_ASK.series(metrics.WORLD_SIZE)}[30m])) > {_MOST_BADPUT_SHARE:g}"
        f"{_GOES_ON}",
        900,
        "{{ $labels.job }}: workers do much that does not count",
        "{{ $value | humanizePercentage }} of the members' time in the last 30 minutes went into "
        "something other than steps that count.",
        "The dashboard *Recovery and goodput* shows what it went into, by cause; "
        "[Where the time goes](monitoring.md#where-the-time-goes) says what each is.",
    ),
    AlertRule(
        "CompressionSlow",
        Severity.INFO,
        f"{_ASK.latest(metrics.SLOW_KERNELS)} == 1",
        600,
        "{{ $labels.job }}: gradients are compressed by slow kernels",
        "Some rank compresses in plain torch, which is several times slower.",
        "That rank's log says why its kernels could not be built: as a rule a compiler is missing.",
    ),
    AlertRule(
        "DetectorOff",
        Severity.WARNING,
        f"{_ASK.latest(metrics.DETECTOR_OFF, 'detector')} == 1",
        60,
        "{{ $labels.job }}: nobody looks for what the detector of {{ $labels.detector }} finds",
        "It has failed, and is off for now or for good. Training goes on.",
        "The event `detector_off` has the error, and says what is not looked for; `detector_on` "
        "tells that it works again.",
    ),
    AlertRule(
        "SinkIncomplete",
        Severity.INFO,
        f"{_ASK.new(metrics.SINK_DROPPED, 'sink', window='10m')} > 0",
        0,
        "{{ $labels.job }}: {{ $labels.sink }} lacks points of the curves",
        "{{ $value | humanize }} points were dropped within 10 minutes.",
        "The event `sink_failed` says why. The run's own record lacks nothing.",
    ),
    AlertRule(
        "EventsNotPosted",
        Severity.WARNING,
        f"{_ASK.new(metrics.POSTS_DROPPED, 'receiver', window='10m')} > 0",
        0,
        "{{ $labels.job }}: the {{ $labels.receiver }} is not told of all events",
        "{{ $value | humanize }} events were dropped within 10 minutes.",
        "The event `post_failed` says why. Whoever goes by the webhook alone has missed them; "
        "the run's own record lacks nothing.",
    ),
)

CHECKPOINTS = (
    AlertRule(
        "CheckpointOld",
        Severity.WARNING,
        f"{_ASK.latest(metrics.CHECKPOINT_AGE)} > {_OLD_CHECKPOINT_S}",
        300,
        "{{ $labels.job }}: the newest checkpoint is old",
        "It was made {{ $value | humanizeDuration }} ago: so much is lost if every machine is.",
        "Is it meant to be (`checkpoint.every_s`, `every_steps`)? Then raise this limit. Else the "
        "events `checkpoint_failed` and `checkpoint_skipped` say what is wrong with the store.",
    ),
    AlertRule(
        "NoCheckpoint",
        Severity.WARNING,
        # The age of a checkpoint that was never made is not known.
        f"{_ASK.total(metrics.CHECKPOINTS_SKIPPED)} > 0 "
        f"and {_ASK.latest(metrics.COORDINATOR_TIMESTAMP)} "
        f"unless {_ASK.latest(metrics.CHECKPOINT_STEP)}",
        3600,
        "{{ $labels.job }}: no checkpoint was ever made",
        "{{ $value | humanize }} were due, the first of them an hour ago: all is lost if every "
        "machine is.",
        "The first event `checkpoint_failed` or `checkpoint_skipped` says why; `trainflow doctor "
        "JOB.yaml` tries the store.",
    ),
    AlertRule(
        "CheckpointsSkipped",
        Severity.WARNING,
        f"{_ASK.new(metrics.CHECKPOINTS_SKIPPED, window='1h')} >= {_LEAST_SKIPPED}",
        0,
        "{{ $labels.job }}: checkpoints that were due are not made",
        "{{ $value | humanize }} were skipped within an hour.",
        "The store takes longer than the interval, or memory is short: the event "
        "`checkpoint_skipped` says which. Make fewer, or give the store more bandwidth.",
    ),
)

RULES: Mapping[str, tuple[AlertRule, ...]] = {
    "trainflow-members": MEMBERS,
    "trainflow-training": TRAINING,
    "trainflow-checkpoints": CHECKPOINTS,
}
"""All of them, by the group in which Prometheus evaluates them."""

ALL_RULES: tuple[AlertRule, ...] = tuple(rule for group in RULES.values() for rule in group)
