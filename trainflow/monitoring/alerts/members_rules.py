"""Alerts of who trains, and of what befalls them. Pure."""

from trainflow.monitoring import metrics
from trainflow.monitoring.alerts.rule import AlertRule, Severity
from trainflow.monitoring.promql import Queries

_ASK = Queries()

_SILENT = "2m"  # one that has ended stays for a minute, and what it showed a little longer
_MOST_FAILURES_AN_HOUR = 5
_SLOW_RECOVERY_S = 60
_LONG_WITHOUT_A_STEP_S = 600
_MOST_COLLECTIVE_ERRORS_AN_HOUR = 2

_PLANNED = 'cause!="preempted"'
_WRONG_BITS = 'cause="wrong_bits"'
_ON_THE_WIRE = 'cause="collective"'
_LOOKED_AT = _ASK.latest(metrics.COORDINATOR_TIMESTAMP)
# Not by Prometheus's own clock, which may differ from the coordinator's.
_LOOKED_AT_BEFORE = f"max by (job) ({_ASK.series(metrics.COORDINATOR_TIMESTAMP)} offset {_SILENT})"

MEMBERS = (
    AlertRule(
        "CoordinatorSilent",
        Severity.CRITICAL,
        f"{_LOOKED_AT} == {_LOOKED_AT_BEFORE}",
        0,
        "{{ $labels.job }}: the coordinator stands still",
        "It has not looked after the run for two minutes; losses are not made up for meanwhile.",
        "Training goes on without it until something is lost. `trainflow workers` tells where it "
        "is; a disk or a network file system under TRAINFLOW_HOME that hangs is the usual cause. "
        "If its process is killed, Ray starts it again and it goes on from the run's record. Ends "
        "of runs are silent: what a coordinator showed is gone 20 s after its process is.",
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
        "point.",
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
        "{{ $value | humanize }} within an hour; its rank was taken from it.",
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
