"""Every metric that a run exports: its name, kind, unit, labels and meaning.

Nothing is exported, drawn or alerted on that isn't in this table, and docs/metrics.md is made from
it (``python -m trainflow.monitoring.metrics_page``). Names follow
https://prometheus.io/docs/practices/naming: base units, which the name ends in; ``_total`` at the
end of a counter; ``_ratio`` for what is a share of one. Each metric has the label ``job`` and never
one a rank, and of nodes none but the few that hold the others up: a run of a thousand ranks has as
many series at once as a run of two.

Pure: plain values.
"""

from trainflow.config.sinks import PACKAGES
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.detectors import Detector
from trainflow.monitoring.failure_causes import FailureCause
from trainflow.monitoring.ledger import CAUSES, PRODUCTIVE
from trainflow.monitoring.metric import Kind, Metric
from trainflow.monitoring.phases import RECOVERY_PHASES, STEP_PHASES, SUM_PHASES
from trainflow.monitoring.slow_nodes import PLACES
from trainflow.monitoring.usage import STATISTICS

_STEP_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_RECOVERY_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# What training comes to

LOSS = Metric(
    "loss", Kind.GAUGE, "1", "Mean loss over the global batch, in the newest committed step."
)
GRADIENT_NORM = Metric(
    "gradient_norm", Kind.GAUGE, "1", "2-norm of the newest step's mean gradient, before clipping."
)
LEARNING_RATE = Metric("learning_rate", Kind.GAUGE, "1", "Learning rate of the newest step.")
STEP = Metric("step", Kind.GAUGE, "1", "Number of the newest committed step; falls if a run does.")
STEP_AGE = Metric(
    "step_age_seconds",
    Kind.GAUGE,
    "seconds",
    "Seconds since the newest step was committed; before the first, since the attempt began.",
)
STEPS_COMMITTED = Metric(
    "steps_committed_total", Kind.COUNTER, "1", "Steps committed, also those that were skipped."
)
STEPS_SKIPPED = Metric(
    "steps_skipped_total",
    Kind.COUNTER,
    "1",
    "Steps whose loss or gradient was not finite, or whose gradient was so large that the job has "
    "them skipped: nothing was applied.",
)
STEPS_LOST = Metric(
    "steps_lost_total", Kind.COUNTER, "1", "Steps that were committed and had to be done again."
)
SAMPLES = Metric("samples_total", Kind.COUNTER, "1", "Samples in committed steps.")
TARGETS = Metric(
    "targets_total",
    Kind.COUNTER,
    "1",
    "Sum of the weights that losses are means over: predicted tokens, where a job weighs by these.",
)
TOKENS = Metric(
    "tokens_total", Kind.COUNTER, "1", "Tokens in committed steps; absent where it is not known."
)
ANOMALIES = Metric(
    "anomalies_total",
    Kind.COUNTER,
    "1",
    "Anomalies of losses and gradient norms that were found.",
    {"kind": tuple(AnomalyKind)},
)
ANOMALY_ACTIVE = Metric(
    "anomaly_active", Kind.GAUGE, "1", "1 while one goes on.", {"kind": tuple(AnomalyKind)}
)
REWINDS = Metric(
    "rewinds_total",
    Kind.COUNTER,
    "1",
    "Times that the run has gone back to a checkpoint for its loss.",
)

# Where the time goes

STEP_DURATION = Metric(
    "step_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "One committed step on rank 0, from its begin until it was applied; abandoned tries left out.",
    buckets=_STEP_BUCKETS_S,
)
PHASE_DURATION = Metric(
    "phase_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "What rank 0 spent in each phase from one committed step to the next; `wait` is for ranks that "
    "came later than it, `communicate` the rest of what it waited for others.",
    {"phase": STEP_PHASES},
    _STEP_BUCKETS_S,
)
PHASE_SECONDS = Metric(
    "phase_seconds_total",
    Kind.COUNTER,
    "seconds",
    "The same, added up; exact, as sums of histograms are not that come by way of Ray's agent.",
    {"phase": STEP_PHASES},
)
RANK_COMPUTE = Metric(
    "rank_compute_seconds",
    Kind.GAUGE,
    "seconds",
    "What ranks computed in a step until they had but to wait for each other, over all ranks; of "
    "one that is dealt less than another as if it were dealt as much, of one without samples not.",
    {"statistic": STATISTICS},
)
SLOW_NODE_COMPUTE = Metric(
    "slow_node_compute_seconds",
    Kind.GAUGE,
    "seconds",
    "The same of the slowest rank of a node, of the nodes where that is longest; 0 where there are "
    "fewer nodes.",
    {"place": PLACES},
)
SLOW_NODE_RANK = Metric(
    "slow_node_rank",
    Kind.GAUGE,
    "1",
    "Number of that rank, by which `trainflow workers` and the page tell its node; -1 where there "
    "are fewer nodes.",
    {"place": PLACES},
)
STRAGGLER = Metric(
    "straggler_ratio",
    Kind.GAUGE,
    "ratio",
    "How many times as long as usual the slowest rank of a node computed when it was told that it "
    "holds the others up; gone once that is over. Of the five nodes where that is most.",
    num_hosts=len(PLACES),
)
SHORTEST_WAIT = Metric(
    "shortest_wait_seconds",
    Kind.GAUGE,
    "seconds",
    "What the rank waited that came last: about what communication takes that computing does not "
    "hide.",
)
GOODPUT = Metric(
    "goodput_ratio",
    Kind.GAUGE,
    "ratio",
    "Share of the workers' time so far that went into steps that count.",
)
MFU = Metric(
    "mfu_ratio",
    Kind.GAUGE,
    "ratio",
    "Share of the devices' peak that the model's own operations came to in the newest step; absent "
    "where either is unknown.",
)
HFU = Metric(
    "hfu_ratio", Kind.GAUGE, "ratio", "The same with what is computed again to save memory."
)
BADPUT = Metric(
    "badput_seconds_total",
    Kind.COUNTER,
    "seconds",
    "Seconds of workers that went into anything else.",
    {"cause": tuple(cause for cause in CAUSES if cause != PRODUCTIVE)},
)

# Communication

WIRE_BYTES = Metric(
    "wire_bytes_total",
    Kind.COUNTER,
    "bytes",
    "Bytes that all ranks sent for gradients, taken as those of the rank that told, a rank.",
)
GRADIENT_WIRE_BYTES = Metric(
    "gradient_wire_bytes_total", Kind.COUNTER, "bytes", "Bytes that rank 0 sent for gradients."
)
GRADIENT_PLAIN_BYTES = Metric(
    "gradient_plain_bytes_total",
    Kind.COUNTER,
    "bytes",
    "Bytes that rank 0 would have sent for gradients without compression.",
)
GRADIENT_SUM_SECONDS = Metric(
    "gradient_sum_seconds_total",
    Kind.COUNTER,
    "seconds",
    "Seconds that rank 0 spent on sums of gradients: before, on and after the link.",
    {"phase": SUM_PHASES},
)
LATENCY = Metric(
    "communication_latency_seconds",
    Kind.GAUGE,
    "seconds",
    "What the newest step's exchange of commit records took on rank 0: a small collective of all "
    "ranks, right after their sums of gradients.",
)
RESIDUAL = Metric(
    "residual_ratio",
    Kind.GAUGE,
    "ratio",
    "What compression has left out on rank 0, over its share of the gradients' norm.",
)
SLOW_KERNELS = Metric(
    "compression_slow_kernels",
    Kind.GAUGE,
    "1",
    "1 while some rank compresses in plain torch, for want of compiled kernels.",
)

# What explains the run

SINK_DROPPED = Metric(
    "sink_points_dropped_total",
    Kind.COUNTER,
    "1",
    "Points of curves that a sink lacks, or may lack: it was slow, or failed.",
    {"sink": tuple(PACKAGES)},
)
POSTS_DROPPED = Metric(
    "posts_dropped_total",
    Kind.COUNTER,
    "1",
    "Events that a receiver of events was not told of: it was slow, or failed.",
    {"receiver": ("webhook", "grafana")},
)

DETECTOR_OFF = Metric(
    "detector_off",
    Kind.GAUGE,
    "1",
    "1 while a detector is off, as it has failed: nobody looks for what it finds.",
    {"detector": tuple(Detector)},
)

# Members, and what befalls them

COORDINATOR_TIMESTAMP = Metric(
    "coordinator_timestamp_seconds",
    Kind.GAUGE,
    "seconds",
    "Unix time at which the coordinator last looked after the run.",
)
RUNS_ENDED = Metric(
    "runs_ended_total",
    Kind.COUNTER,
    "1",
    "Ends of the job's attempts; stays when the coordinator is gone.",
    {"state": ("succeeded", "failed", "stopped")},
)
WORLD_SIZE = Metric("world_size", Kind.GAUGE, "1", "Members of the current epoch.")
TARGET_WORLD_SIZE = Metric(
    "target_world_size", Kind.GAUGE, "1", "Members that the job asks for: workers.target."
)
SPARES = Metric("spares", Kind.GAUGE, "1", "Warm workers without a rank.")
TARGET_SPARES = Metric(
    "target_spares", Kind.GAUGE, "1", "Spares that the job asks for: workers.spares."
)
EPOCHS = Metric("epochs_total", Kind.COUNTER, "1", "Epochs formed.")
FAILURES = Metric(
    "failures_total",
    Kind.COUNTER,
    "1",
    "Workers lost, preemptions among them, and epochs, but for those that the loss of a member "
    "explains.",
    {"cause": tuple(FailureCause)},
)
RECOVERIES = Metric(
    "recoveries_total", Kind.COUNTER, "1", "Recoveries that ended in a step of all ranks."
)
RECOVERY_DURATION = Metric(
    "recovery_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Phases of a recovery, from the first word of a loss to a step of all ranks.",
    {"phase": RECOVERY_PHASES},
    _RECOVERY_BUCKETS_S,
)
RECOVERY_SECONDS = Metric(
    "recovery_seconds_total",
    Kind.COUNTER,
    "seconds",
    "The same, added up; exact.",
    {"phase": RECOVERY_PHASES},
)
COPY_LAG = Metric(
    "copy_lag_steps",
    Kind.GAUGE,
    "steps",
    "Steps that a run with sharded state would go back by if a node were lost now.",
)

WORKER_MEMORY = Metric(
    "worker_memory_bytes",
    Kind.GAUGE,
    "bytes",
    "Memory that workers' processes take, spares among them: resident, what they share counts in "
    "each.",
    {"statistic": STATISTICS},
)
DEVICE_MEMORY = Metric(
    "device_memory_used_bytes",
    Kind.GAUGE,
    "bytes",
    "Memory in use on workers' devices, by whatever process; absent without GPUs and NVML.",
    {"statistic": STATISTICS},
)
DEVICE_BUSY = Metric(
    "device_busy_ratio",
    Kind.GAUGE,
    "ratio",
    "Share of NVML's newest sampling period in which workers' devices computed; absent without "
    "GPUs and NVML.",
    {"statistic": STATISTICS},
)

# Checkpoints

CHECKPOINTS = Metric("checkpoints_total", Kind.COUNTER, "1", "Checkpoints made.")
CHECKPOINTS_SKIPPED = Metric(
    "checkpoints_skipped_total",
    Kind.COUNTER,
    "1",
    "Checkpoints that were due and not made: the store was slow, or memory short.",
)
CHECKPOINT_STEP = Metric(
    "checkpoint_step",
    Kind.GAUGE,
    "1",
    "Step of the newest checkpoint that this run has made and that is there; absent if none is.",
)
CHECKPOINT_AGE = Metric(
    "checkpoint_age_seconds",
    Kind.GAUGE,
    "seconds",
    "Seconds since it was made.",
)
CHECKPOINT_BYTES = Metric(
    "checkpoint_written_bytes_total",
    Kind.COUNTER,
    "bytes",
    "Bytes of checkpoints that were new to the store.",
)

METRICS: tuple[Metric, ...] = tuple(each for each in vars().values() if isinstance(each, Metric))
"""All of them."""
