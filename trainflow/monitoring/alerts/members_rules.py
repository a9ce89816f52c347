"""Alerts of who trains, and of what befalls them. Pure."""

from trainflow.monitoring import metrics
from trainflow.monitoring.alerts.rule import AlertRule, Severity
from trainflow.monitoring.detectors import Detector
from trainflow.monitoring.promql import Queries

_ASK = Queries()

_MOST_FAILURES_AN_HOUR = 5
_SLOW_RECOVERY_S = 60
_LONG_WITHOUT_A_STEP_S = 600
_MOST_COLLECTIVE_ERRORS_AN_HOUR = 2

_PLANNED = 'cause!="preempted"'
_WRONG_BITS = 'cause="wrong_bits"'
_ON_THE_WIRE = 'cause="collective"'
_METRICS_OFF = f'detector="{Detector.METRICS.value}"'
_HAS_FAILED, _ENDED_ELSE = 'state="failed"', 'state!="failed"'
_SILENT = "2m"
_LOOKED_BACK, _END_LOOKED_BACK = "15m", "20m"  # an end that was told before it fell silent, too
_FAILED_WITHIN, _SEEN_WITHIN = "30m", "35m"


def _coordinator_is_silent() -> str:
    """Return what finds coordinators that look after their runs no more, gone or standing still.

    What one has shown goes 20 s after it was set last. Its time is compared with what it was
    before, not with Prometheus's own, which may differ. A cluster that is taken down is no target
    of Prometheus any more; one that was lost is, and doesn't answer.
    """
    looked = metrics.COORDINATOR_TIMESTAMP
    seen = _ASK.last_seen(looked, _LOOKED_BACK, _SILENT)
    before, now = f"max by (job) ({seen})", f"max by (job) ({_ASK.last_seen(looked, _SILENT)})"
    ended = f"{_ASK.come_and_gone(metrics.RUNS_ENDED, window=_END_LOOKED_BACK)} > 0"
    off = f"{_ASK.latest(metrics.DETECTOR_OFF, where=_METRICS_OFF)} == 1"
    return (
        f"max by (job) ({seen} and on (instance) up) unless ({now} != {before}) "
        f"unless {ended} unless {off}"
    )


def _run_has_failed() -> str:
    """Return what finds runs that have failed of late, and with which nobody has gone on since.

    Each must have been seen to go on of late, too: the head's agent tells of ends for as long as it
    is there, and to a Prometheus that is new all of them are.
    """
    failed, ended_else = (
        f"{_ASK.come_and_gone(metrics.RUNS_ENDED, where=where, window=_FAILED_WITHIN)} > 0"
        for where in (_HAS_FAILED, _ENDED_ELSE)
    )
    looked = metrics.COORDINATOR_TIMESTAMP
    seen = f"max by (job) ({_ASK.last_seen(looked, _SEEN_WITHIN)})"
    return f"{failed} and {seen} unless {_ASK.latest(looked)} unless {ended_else}"


MEMBERS = (
    AlertRule(
        "RunFailed",
        Severity.CRITICAL,
        _run_has_failed(),
        0,
        "{{ $labels.job }}: the run has failed",
        "It has ended so within 30 minutes, and is not gone on with under its id.",
        "`trainflow status` has the reason, the event `failed` the traceback, and `logs` in the "
        "run's folder what its workers printed. The service resumes it under its id from its "
        "newest checkpoint (`trainflow resume`); so does `trainflow run` as a new job.",
    ),
    AlertRule(
        "CoordinatorSilent",
        Severity.CRITICAL,
        _coordinator_is_silent(),
        60,  # Prometheus itself may have been away, and have yet to look
        "{{ $labels.job }}: the coordinator is gone or stands still",
        "It has not looked after the run for two minutes, and has told of no end; losses are not "
        "made up for meanwhile.",
        "Training goes on without it until something is lost. `trainflow workers` tells where it "
        "is. If its process was killed, Ray starts it again, and it goes on from the run's record; "
        "if Ray's head is gone, nobody does: begin it anew, and resume the job. If it is there, a "
        "disk or a network file system under TRAINFLOW_HOME that hangs is the usual cause; or "
        "Prometheus doesn't reach the head. It fires for a quarter of an hour, and not for a run "
        "whose end was told, or whose metrics are off (DetectorOff).",
    ),
    AlertRule(
        "Stalled",
        Severity.CRITICAL,
        f"{_ASK.latest(metrics.STEP_AGE)} > {_LONG_WITHOUT_A_STEP_S}",
        60,
        "{{ $labels.job }}: no step for ten minutes",
        "The run goes on, and has committed no step for {{ $value | humanizeDuration }}, or has "
        "not come to its first one since it began.",
        "`trainflow status` says whether it is starting or recovering, or waits for capacity "
        "(`workers.minimum`); `trainflow workers` what each is at. A step, or a start, that takes "
        "longer than that by itself needs another limit here.",
    ),
    AlertRule(
        "NothingAnswers",
        Severity.CRITICAL,
        'absent(up{job="ray"} == 1)',
        120,
        "no node of the Ray cluster answers Prometheus",
        "For two minutes nothing that belongs to the job of scraping named ray has answered.",
        "The head is gone, or its metrics port can't be reached from Prometheus, or Ray's file "
        "`prom_metrics_service_discovery.json` is not where prometheus.yml looks. Until this is "
        "mended no other alert of TrainFlow can fire.",
    ),
    AlertRule(
        "WorkerLost",
        Severity.INFO,
        f"{_ASK.new(metrics.FAILURES, 'cause', window='5m')} > 0",
        0,
        "{{ $labels.job }}: a worker or an epoch was lost: {{ $labels.cause }}",
        "{{ $value | humanize }} lost within 5 minutes. The run makes up for it by itself.",
        "Nothing needs doing once. The event `failure` names the worker and its node, `recovered` "
        "what it cost.",
    ),
    AlertRule(
        "FailuresTooOften",
        Severity.CRITICAL,
        f"{_ASK.new(metrics.FAILURES, where=_PLANNED, window='1h')} >= {_MOST_FAILURES_AN_HOUR}",
        0,
        "{{ $labels.job }}: workers are lost again and again",
        "{{ $value | humanize }} within an hour; `failures.max_failures` ends the run at some "
        "point, unless it is spares alone.",
        "Do the events `failure` name one node? `failures.isolate_after` takes it out. One cause? "
        "`raised` is the job's own code, `hung` often the store or the network, `died` often "
        "memory: look at the kernel's log for the OOM killer.",
    ),
    AlertRule(
        "WrongBits",
        Severity.CRITICAL,
        f"{_ASK.new(metrics.FAILURES, where=_WRONG_BITS, window='1h')} > 0",
        0,
        "{{ $labels.job }}: a rank computed other bits than the others",
        "{{ $value | humanize }} within an hour; its rank was taken from it, if a majority told "
        "which one it was, and of sums the second time.",
        "Take the node out of use and test its memory and devices: hardware that computes wrongly "
        "once does so again. `trainflow bisect` tells since when runs differ.",
    ),
    AlertRule(
        "CollectivesFail",
        Severity.WARNING,
        f"{_ASK.new(metrics.FAILURES, where=_ON_THE_WIRE, window='1h')} "
        f"> {_MOST_COLLECTIVE_ERRORS_AN_HOUR}",
        0,
        "{{ $labels.job }}: sums fail on the wire although nobody died",
        "{{ $value | humanize }} within an hour.",
        "Connections between ranks break: look at errors of the interfaces and at what else the "
        "network carries. The events `slow_network` name links that are slow.",
    ),
    AlertRule(
        "RecoverySlow",
        Severity.WARNING,
        f"{_ASK.new(metrics.RECOVERY_SECONDS, window='30m')} "
        f"/ ({_ASK.new(metrics.RECOVERIES, window='30m')} > 0) > {_SLOW_RECOVERY_S}",
        0,
        "{{ $labels.job }}: recoveries take long",
        "In the last 30 minutes one took {{ $value | humanizeDuration }} on average.",
        "The dashboard *Recovery and goodput* shows which phase: `form` waits for workers, `heal` "
        "copies the state, `step` computes one again. Without spares each waits for a process to "
        "start.",
    ),
    AlertRule(
        "WorldTooSmall",
        Severity.WARNING,
        f"{_ASK.latest(metrics.WORLD_SIZE)} < {_ASK.latest(metrics.TARGET_WORLD_SIZE)}",
        300,
        "{{ $labels.job }}: fewer members than the job asks for",
        "It trains with {{ $value | humanize }} members.",
        "The cluster has no room for more, or nodes are isolated (events `isolate`). Training goes "
        "on more slowly with the same global batch, and grows back once there is room.",
    ),
    AlertRule(
        "NoSpares",
        Severity.WARNING,
        f"{_ASK.latest(metrics.SPARES)} == 0 and {_ASK.latest(metrics.TARGET_SPARES)} > 0",
        600,
        "{{ $labels.job }}: no spare is left",
        "The next loss costs members, or waits for a process to start.",
        "Is there room for them on the cluster? `trainflow workers` shows those that are starting.",
    ),
)
