"""For each alert, series with which it fires, and such with which it is silent.

Series are in the notation of promtool: ``0+2x60`` is 0 and sixty more, each 2 above the last;
``_x60`` is nothing sixty times. One value stands for a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Series = Mapping[str, str]

JOB = "lm-abc234"
_PREFIX = "ray_trainflow_"


def shown(suffix: str, labels: str = "") -> str:
    """Return a series as Ray's agents show it."""
    return f'{_PREFIX}{suffix}{{job="{JOB}",Component="core_worker",{labels}}}'


def phases(values: str) -> Series:
    return {shown("phase_seconds_total", f'phase="{p}"'): values for p in ("compute", "data")}


STEPS = shown("steps_committed_total")


@dataclass(frozen=True)
class Case:
    """One alert.

    Attributes:
        at: when it is looked at, in promtool's notation.
        fires: series with which it fires then.
        silent: each of these are series with which it doesn't.
        value: what its value reads as.
        labels: it has beside the job's and its severity.
        is_of_a_job: whether it has a job's.
    """

    at: str
    fires: Series
    silent: tuple[Series, ...]
    value: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    is_of_a_job: bool = True


def counted(suffix: str, label: str, value: str) -> str:
    return shown(suffix, f'{label}="{value}"')


FAILED, ANOMALY = "failures_total", "anomalies_total"
DIED = counted(FAILED, "cause", "died")
WORLD, WANTED = shown("world_size"), shown("target_world_size")
SPARES, WANTED_SPARES = shown("spares"), shown("target_spares")
RECOVERED = shown("recoveries_total")
HEALING = counted("recovery_seconds_total", "phase", "heal")
WRONG = counted(FAILED, "cause", "wrong_bits")
WIRE = counted(FAILED, "cause", "collective")
PREEMPTED = counted(FAILED, "cause", "preempted")
NOT_FINITE = counted(ANOMALY, "kind", "not_finite")
SPIKE = counted(ANOMALY, "kind", "loss_spike")
NORM = counted(ANOMALY, "kind", "norm_high")
ACTIVE = "anomaly_active"
NOT_FINITE_NOW = counted(ACTIVE, "kind", "not_finite")
SPIKE_NOW = counted(ACTIVE, "kind", "loss_spike")
NORM_NOW = counted(ACTIVE, "kind", "norm_high")
SKIPPED = shown("steps_skipped_total")
SLOWEST = counted("rank_compute_seconds", "statistic", "max")
MEDIAN = counted("rank_compute_seconds", "statistic", "p50")
STRAGGLER = counted("straggler_ratio", "host", "10.0.0.7")
WASTED = counted("badput_seconds_total", "cause", "wasted")
IDLE = counted("badput_seconds_total", "cause", "idle")
SLOW = shown("compression_slow_kernels")
DROPPED = counted("sink_points_dropped_total", "sink", "wandb")
OFF = counted("detector_off", "detector", "hangs")
UNTOLD = counted("posts_dropped_total", "receiver", "webhook")
AGE, STEP_AGE = shown("checkpoint_age_seconds"), shown("step_age_seconds")
LATE, STORED = shown("checkpoints_skipped_total"), shown("checkpoint_step")
HEAD = 'instance="10.0.0.1:8080"'
UP = f'up{{job="ray",{HEAD}}}'
LOOKED = shown("coordinator_timestamp_seconds", HEAD)
NO_METRICS = counted("detector_off", "detector", "metrics")
SUCCEEDED, BROKEN, STOPPED = (
    counted("runs_ended_total", "state", state) for state in ("succeeded", "failed", "stopped")
)

CASES: Mapping[str, Case] = {
    "RunFailed": Case(
        "25m",
        {BROKEN: "_x20 1x20", LOOKED: "0+60x18"},
        (
            {SUCCEEDED: "_x20 1x20", LOOKED: "0+60x18"},
            {STOPPED: "_x20 1x20", LOOKED: "0+60x18"},
            {BROKEN: "_x20 1x20"},  # Prometheus is new; nobody knows how long ago that was
            {BROKEN: "_x10 1x30", LOOKED: "0+60x9 _x5 900+60x20"},  # it is gone on with
            {BROKEN: "_x10 1x30", SUCCEEDED: "_x20 1x20", LOOKED: "0+60x18"},  # and well
        ),
    ),
    "CoordinatorSilent": Case(
        "12m",
        {LOOKED: "0+60x5 300x10", UP: "1x20"},
        (
            {LOOKED: "0+60x20", UP: "1x20"},
            {LOOKED: "7200+60x20", UP: "1x20"},  # its clock is two hours ahead
            {LOOKED: "0+60x5 240+60x20", UP: "1x20"},  # and was set back
            {LOOKED: "_x12 600", UP: "1x20"},  # it has but begun
            {LOOKED: "0+60x5 _ _ 480+60x9", UP: "1x20"},  # it was started again
            {LOOKED: "0+60x5 _x20", SUCCEEDED: "_x6 1x20", UP: "1x20"},
            {LOOKED: "0+60x5 _x20", SUCCEEDED: "_x6 1 1 stale", UP: "1x7 0x20"},  # so has the head
            {LOOKED: "0+60x5 _x20", UP: "1x6 stale"},  # the whole cluster was taken down
            {LOOKED: "0+60x5 _x20", NO_METRICS: "0x5 1x20", UP: "1x20"},  # see DetectorOff
        ),
    ),
    "Stalled": Case(
        "30m",
        {STEP_AGE: "2x10 60+60x30"},
        (
            {STEP_AGE: "2x40"},
            {STEP_AGE: "2x20 60+60x20"},  # for just ten minutes
            {STEP_AGE: "2x10 60+60x11 _x20"},  # the run is over
            {STEP_AGE: "0+60x15 2x30"},  # it has begun late
        ),
        "20m 0s",
    ),
    "NothingAnswers": Case("10m", {UP: "1x3 0x20"}, ({UP: "1x20"},), is_of_a_job=False),
    "WorkerLost": Case(
        "12m",
        {DIED: "_x10 1x10"},
        ({DIED: "_x2 1x20"}, {}),
        "1",
        {"cause": "died"},
    ),
    "FailuresTooOften": Case(
        "70m", {DIED: "_x20 1+1x4 5x60"}, ({DIED: "_x20 1+1x3 4x60"}, {PREEMPTED: "0+1x90"}), "5"
    ),
    "WrongBits": Case("30m", {WRONG: "_x20 1x20"}, ({WRONG: "0x40"}, {DIED: "_x20 1x20"}), "1"),
    "CollectivesFail": Case("30m", {WIRE: "_x20 3x20"}, ({WIRE: "_x20 2x20"},), "3"),
    "RecoverySlow": Case(
        "30m",
        {RECOVERED: "_x20 2x20", HEALING: "_x20 180x20"},
        (
            {RECOVERED: "_x20 2x20", HEALING: "_x20 100x20"},
            {RECOVERED: "2x60", HEALING: "900x60"},
        ),
        "1m 30s",
    ),
    "WorldTooSmall": Case(
        "20m",
        {WORLD: "4x10 3x20", WANTED: "4x30"},
        ({WORLD: "4x30", WANTED: "4x30"}, {WORLD: "4x17 3x9", WANTED: "4x30"}),
        "3",
    ),
    "NoSpares": Case(
        "30m",
        {SPARES: "1x10 0x30", WANTED_SPARES: "1x40"},
        ({SPARES: "0x40", WANTED_SPARES: "0x40"}, {SPARES: "1x25 0x20", WANTED_SPARES: "1x40"}),
    ),
    "LossNotFinite": Case(
        "25m",
        {NOT_FINITE: "_x20 1x20"},
        ({NOT_FINITE: "_x5 1x40"}, {SPIKE: "_x20 1x20"}, {SPIKE_NOW: "1x40"}),
    ),
    "LossAnomaly": Case(
        "25m",
        {SPIKE: "1x22 2x20"},
        ({SPIKE: "1x40"}, {NORM: "_x20 1x20"}, {NORM_NOW: "1x40"}),
        labels={"kind": "loss_spike"},
    ),
    "GradientNormAnomaly": Case(
        "25m",
        {NORM: "_x20 3x20"},
        ({SPIKE: "_x20 1x20"}, {SPIKE_NOW: "1x40"}),
        labels={"kind": "norm_high"},
    ),
    "StepsSkipped": Case(
        "40m",
        {SKIPPED: "0+1x60", STEPS: "0+20x60", WORLD: "4x60"},
        (
            {SKIPPED: "0+1x60", STEPS: "0+200x60", WORLD: "4x60"},
            {SKIPPED: "0+1x60", STEPS: "0+20x60", WORLD: "4x34"},  # the run is over
        ),
        "5%",
    ),
    "StepTimeRisen": Case(
        "100m",
        {STEPS: "0+60x75 4515+30x45", **phases("0+30x120")},
        ({STEPS: "0+60x120", **phases("0+30x120")},),
        "1.825",
    ),
    "Straggler": Case(
        "20m",
        {STRAGGLER: "_x5 2x30"},
        (
            {STRAGGLER: "1.3x30"},
            {STRAGGLER: "2x9 _x20"},
            {SLOWEST: "2x30", MEDIAN: "1x30"},  # of what not all are dealt alike
        ),
        "2",
        {"host": "10.0.0.7"},
    ),
    "GoodputLow": Case(
        "60m",
        {WASTED: "0+60x90", WORLD: "4x90"},
        (
            {WASTED: "0+30x90", WORLD: "4x90"},
            {IDLE: "0+120x90", WORLD: "4x90"},
            {WASTED: "0x34 180+180x9 1800x45", WORLD: "4x44"},  # the run is over
        ),
        "25%",
    ),
    "CompressionSlow": Case("20m", {SLOW: "1x30"}, ({SLOW: "0x30"},)),
    "SinkIncomplete": Case(
        "25m", {DROPPED: "_x20 7x20"}, ({DROPPED: "7x40"},), "7", {"sink": "wandb"}
    ),
    "DetectorOff": Case(
        "5m",
        {OFF: "0 0 1x10"},
        ({OFF: "0x10"}, {OFF: "0 0 0 1 1 0x10"}),
        "1",
        {"detector": "hangs"},
    ),
    "EventsNotPosted": Case(
        "25m", {UNTOLD: "_x20 2x20"}, ({UNTOLD: "2x40"},), "2", {"receiver": "webhook"}
    ),
    "CheckpointOld": Case("70m", {AGE: "0+60x90"}, ({AGE: "0+60x40 0+60x50"},), "1h 10m 0s"),
    "NoCheckpoint": Case(
        "90m",
        {LATE: "_x20 1x29 2x60", LOOKED: "0+60x120"},
        (
            {LATE: "_x20 1x29 2x60", LOOKED: "0+60x120", STORED: "_x80 100x60"},
            {LATE: "_x20 1x29 2x60", LOOKED: "0+60x80"},  # the run is over
            {LATE: "_x40 1x80", LOOKED: "0+60x120"},
            {LOOKED: "0+60x120"},  # it makes none
        ),
        "2",
    ),
    "CheckpointsSkipped": Case("50m", {LATE: "_x20 3x40"}, ({LATE: "_x20 2x40"},), "3"),
}
