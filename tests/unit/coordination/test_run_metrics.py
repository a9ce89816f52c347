"""Which metric moves with what a run records."""

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.distributed.jobs import BATCH, make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_paced_export import ForgetfulExport
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import GradientSums, WorkDescribed
from trainflow.coordination.metric_export import RayExport
from trainflow.coordination.run_metrics import RunMetrics
from trainflow.monitoring import metrics
from trainflow.monitoring.metric import Kind, Metric
from trainflow.monitoring.metrics import METRICS
from trainflow.monitoring.slow_nodes import PLACES
from trainflow.monitoring.usage import STATISTICS, Usage

SUMS = GradientSums(plain_bytes=400, before_s=0.1, link_s=0.2, after_s=0.0, residual_ratio=0.5)
DIED = "lost slot1-1.1 (rank 1): its actor exited"
FAILED = "a collective failed on slot0-1.0: Connection closed by peer"
CUT = "collective"
RECOVERED = {
    "epoch": "1.2",
    "steps_lost": 2,
    "noticed_at_s": 10.0,
    "asked_at_s": 10.1,
    "begun_at_s": 10.3,
    "healed_at_s": 10.7,
    "committed_at_s": 11.5,
}


class Shown:
    """What a run's events and steps come to."""

    def __init__(self, *events: dict[str, Any], stepped_at_s: float = 0.0, **training: Any) -> None:
        self.clock = FakeClock()
        self.export = ForgetfulExport()
        job = make_job(training=training)
        self.metrics = RunMetrics(job, self.export, self.clock, events, stepped_at_s)

    def value(self, metric: Metric, **labels: str) -> float | None:
        self.metrics.flush()
        return self.export.value(metric, **labels)

    def observed(self) -> dict[str, list[float]]:
        self.metrics.flush()
        return self.export.observed

    def tell(self, kind: str, text: str = "", **data: Any) -> None:
        self.metrics.on_event(make_event(kind, text, **data))

    def step(self, **changes: Any) -> None:
        self.metrics.on_step(replace(STEP, **changes))


def make_event(kind: str, text: str = "", at_s: float = 1000.0, **data: Any) -> dict[str, Any]:
    return {"number": 1, "at_s": at_s, "kind": kind, "text": text, "data": data}


@pytest.fixture
def shown() -> Shown:
    return Shown()


EVEN = {"global_batch_size": 18, "microbatch_size": 1}


@pytest.fixture
def even() -> Shown:
    """Of a job whose ranks are dealt equally much, whether they are two, three or nine."""
    return Shown(**EVEN)


def test_a_step_shows_what_training_comes_to(shown: Shown):
    shown.metrics.on_step(STEP)
    shown.metrics.on_step(replace(STEP, step=2, loss=2.25, applied=False, grad_norm=math.inf))
    values = [
        (metrics.STEP, 2),
        (metrics.LOSS, 2.25),
        (metrics.GRADIENT_NORM, math.inf),
        (metrics.LEARNING_RATE, STEP.lr),
        (metrics.STEPS_COMMITTED, 2),
        (metrics.STEPS_SKIPPED, 1),
        (metrics.SAMPLES, 2 * BATCH),
        (metrics.TARGETS, 2 * STEP.weight),
        (metrics.WIRE_BYTES, 2 * STEP.wire_bytes * STEP.world_size),
    ]
    assert [(metric, shown.value(metric)) for metric, _ in values] == values


def test_a_step_shows_where_its_time_went(shown: Shown):
    phases_s = {"compute": 0.25, "communicate": 0.125}
    shown.metrics.on_step(replace(STEP, phases_s=phases_s, shortest_wait_s=0.01))
    assert shown.observed() == {
        "step_duration_seconds": [0.5],
        "phase_duration_seconds|compute": [0.25],
        "phase_duration_seconds|communicate": [0.125],
    }
    assert shown.value(metrics.SHORTEST_WAIT) == 0.01
    assert shown.value(metrics.LATENCY) == STEP.exchange_s
    assert shown.value(metrics.PHASE_SECONDS, phase="compute") == 0.25


def test_latency_is_rank_0s_and_no_other_ranks(shown: Shown):
    shown.step(exchange_s=0.002)
    shown.step(rank=1, exchange_s=0.5)  # of a rank that tells how it joined
    assert shown.value(metrics.LATENCY) == 0.002


def test_ranks_are_told_by_their_spread_and_now_and_then(even: Shown):
    even.metrics.on_step(replace(STEP, compute_by_rank=(0.2, 0.1, 0.4)))
    even.metrics.on_step(replace(STEP, compute_by_rank=(0.9, 0.9, 0.9)))
    spread_of_first = {"min": 0.1, "p50": 0.2, "p99": 0.4, "max": 0.4}
    for statistic, value in spread_of_first.items():
        assert even.value(metrics.RANK_COMPUTE, statistic=statistic) == value
    even.clock.now_s += 5.0
    even.metrics.on_step(replace(STEP, compute_by_rank=(0.9, 0.9, 0.9)))
    assert even.value(metrics.RANK_COMPUTE, statistic="min") == 0.9


def slow_nodes(shown: Shown) -> list[tuple[float | None, float | None]]:
    return [
        (
            shown.value(metrics.SLOW_NODE_RANK, place=place),
            shown.value(metrics.SLOW_NODE_COMPUTE, place=place),
        )
        for place in PLACES
    ]


def test_the_slowest_ranks_of_the_slowest_nodes_are_told(even: Shown):
    even.tell("epoch", nodes=[0, 0, 1])
    even.step(compute_by_rank=(0.2, 0.3, 0.9))
    assert slow_nodes(even) == [(2, 0.9), (1, 0.3), (-1, 0.0), (-1, 0.0), (-1, 0.0)]
    even.tell("epoch", nodes=[0, 0, 0])
    even.clock.now_s += 5.0
    even.step(compute_by_rank=(0.2, 0.3, 0.9))
    assert slow_nodes(even)[:2] == [(2, 0.9), (-1, 0.0)], "a node that is gone has no place"


def test_of_many_nodes_five_are_told(even: Shown):
    even.tell("epoch", nodes=[*range(9)])
    even.step(compute_by_rank=tuple(0.1 * (rank + 1) for rank in range(9)))
    assert [rank for rank, _ in slow_nodes(even)] == [8, 7, 6, 5, 4]


@pytest.mark.parametrize("nodes", [{}, {"nodes": []}, {"nodes": [0, 1]}])
def test_where_it_is_not_known_who_is_where_none_is_told(shown: Shown, nodes: dict[str, Any]):
    shown.tell("epoch", **nodes)
    shown.step(compute_by_rank=(0.2, 0.3, 0.9))
    assert slow_nodes(shown) == [(None, None)] * 5


def test_a_new_coordinator_knows_from_the_record_who_is_where():
    shown = Shown(make_event("epoch", nodes=[0, 1]), **EVEN)
    shown.step(compute_by_rank=(0.2, 0.3))
    assert slow_nodes(shown)[0] == (1, 0.3)


def test_ranks_that_are_dealt_less_are_told_as_if_they_were_dealt_as_much(shown: Shown):
    shown.tell("epoch", nodes=[0, 1, 2])
    shown.step(compute_by_rank=(0.4, 0.2, 0.2))  # two microbatches, one, and one of one sample
    assert shown.value(metrics.RANK_COMPUTE, statistic="max") == 0.4
    assert shown.value(metrics.RANK_COMPUTE, statistic="p50") == 0.4
    shown.clock.now_s += 5.0
    shown.step(compute_by_rank=(0.4, 0.2, 0.8))
    assert slow_nodes(shown)[0] == (2, 0.8)


def test_ranks_without_samples_are_not_told_of():
    shown = Shown(make_event("epoch", nodes=[0, 0, 1, 1, 2]), microbatch_size=5)
    shown.step(compute_by_rank=(0.2, 0.2, 0.0, 0.0, 0.0))
    assert shown.value(metrics.RANK_COMPUTE, statistic="min") == 0.2
    assert slow_nodes(shown)[:2] == [(0, 0.2), (-1, 0.0)]


def straggle(host: str, **ratios: float) -> dict[str, Any]:
    stragglers = [{"worker_id": worker, "ratio": ratio} for worker, ratio in ratios.items()]
    return {"host": host, "stragglers": stragglers}


def ratio_of(shown: Shown, host: str) -> float | None:
    shown.export.forget()
    return shown.value(metrics.STRAGGLER, host=host)


def test_a_node_whose_rank_holds_the_others_up_is_named_until_it_does_not(shown: Shown):
    shown.tell("straggler", **straggle("10.0.0.1", w1=1.5, w2=2.5))
    shown.tell("straggler", **straggle("10.0.0.2", w3=1.25))
    assert (ratio_of(shown, "10.0.0.1"), ratio_of(shown, "10.0.0.2")) == (2.5, 1.25)
    shown.tell("straggler_over", worker="w2", left=False)
    shown.tell("straggler_over", worker="w3", left=True)
    assert (ratio_of(shown, "10.0.0.1"), ratio_of(shown, "10.0.0.2")) == (1.5, None)


def test_of_many_such_nodes_the_worst_five_are_named(shown: Shown):
    for number in range(9):
        shown.tell("straggler", **straggle(f"10.0.0.{number}", **{f"w{number}": 2.0 + number}))
    named = [number for number in range(9) if ratio_of(shown, f"10.0.0.{number}") is not None]
    assert named == [4, 5, 6, 7, 8]


def test_a_new_coordinator_knows_from_the_record_which_nodes_those_are():
    begun = make_event("straggler", **straggle("10.0.0.1", w1=1.5))
    of_old = make_event("straggler", stragglers=[{"worker_id": "w2", "ratio": 9.0}])
    assert ratio_of(Shown(begun, of_old), "10.0.0.1") == 1.5
    shown = Shown(begun)
    shown.tell("attempt", attempt=2)
    assert ratio_of(shown, "10.0.0.1") is None
    over = make_event("straggler_over", worker="w1", left=False)
    assert ratio_of(Shown(begun, over), "10.0.0.1") is None
    assert ratio_of(Shown(begun, make_event("attempt", attempt=2)), "10.0.0.1") is None


def test_what_workers_take_is_told_by_its_spread_and_now_and_then(shown: Shown):
    def memory(statistic: str) -> float | None:
        return shown.value(metrics.WORKER_MEMORY, statistic=statistic)

    shown.metrics.hear("node-1", [Usage(100), Usage(300, 5000, 0.25)])
    shown.metrics.hear("node-2", [Usage(200)])
    shown.metrics.tick(3, 0)
    assert [memory(each) for each in STATISTICS] == [100, 200, 300, 300]
    assert shown.value(metrics.DEVICE_MEMORY, statistic="min") == 5000
    assert shown.value(metrics.DEVICE_BUSY, statistic="max") == 0.25
    shown.metrics.hear("node-1", [Usage(900)])
    shown.metrics.tick(3, 0)
    assert memory("max") == 300
    shown.clock.now_s += 5.0
    shown.metrics.tick(3, 0)
    assert memory("max") == 900


def test_a_node_that_is_silent_counts_no_more(shown: Shown):
    shown.metrics.hear("node-1", [Usage(900)])
    shown.clock.now_s += 10.0
    shown.metrics.hear("node-2", [Usage(200)])
    shown.clock.now_s += 6.0
    shown.metrics.tick(3, 0)
    assert shown.value(metrics.WORKER_MEMORY, statistic="max") == 200


def test_what_no_node_tells_any_more_is_not_shown_again():
    shown = Shown()
    shown.step()
    shown.metrics.hear("node-1", [Usage(900)])
    shown.metrics.tick(3, 0)
    shown.clock.now_s += 16.0
    shown.metrics.tick(3, 0)
    shown.export.forget()
    shown.clock.now_s += 1.0
    shown.metrics.tick(3, 0)
    assert shown.value(metrics.WORKER_MEMORY, statistic="max") is None
    assert shown.value(metrics.LOSS) == STEP.loss


def test_of_devices_that_tell_nothing_nothing_is_shown(shown: Shown):
    shown.metrics.hear("node-1", [Usage(900)])
    shown.metrics.tick(3, 0)
    assert shown.value(metrics.DEVICE_MEMORY, statistic="max") is None
    assert shown.value(metrics.DEVICE_BUSY, statistic="max") is None


def test_a_run_that_goes_back_for_its_loss_is_counted_with_the_steps_that_are_void(shown: Shown):
    shown.tell("rewound", to_step=110, position=1210, steps_lost=20)
    assert shown.value(metrics.REWINDS) == 1
    assert shown.value(metrics.STEPS_LOST) == 20


def test_sums_are_shown_by_phase_as_rank_0_sees_them(shown: Shown):
    shown.metrics.on_step(replace(STEP, sums=SUMS, copy_lag=3))
    shown.metrics.on_step(replace(STEP, sums=SUMS, copy_lag=3, rank=1))
    assert shown.value(metrics.GRADIENT_WIRE_BYTES) == STEP.wire_bytes
    assert shown.value(metrics.GRADIENT_PLAIN_BYTES) == 400
    assert shown.value(metrics.GRADIENT_SUM_SECONDS, phase="link") == 0.2
    assert shown.value(metrics.RESIDUAL) == 0.5
    assert shown.value(metrics.SLOW_KERNELS) == 0.0
    assert shown.value(metrics.COPY_LAG) == 3


def test_a_failure_is_counted_by_cause(shown: Shown):
    member: dict[str, Any] = {"worker": "slot1-1.1", "rank": 1}
    shown.tell("failure", DIED, **member)
    hung = "lost slot1-1.1 (rank 1): hung: no progress in data of step 3 for 3.1 s"
    shown.tell("failure", hung, **member)
    shown.tell("failure", DIED, **member, preempted=True)
    counted = [shown.value(metrics.FAILURES, cause=c) for c in ("died", "hung", "preempted")]
    assert counted == [1, 1, 1]


def failures(shown: Shown) -> dict[str, float]:
    values = {each: shown.value(metrics.FAILURES, cause=each) for each in ("died", CUT)}
    return {cause: value for cause, value in values.items() if value is not None}


def test_a_collective_that_failed_as_a_member_died_is_no_failure_of_its_own(shown: Shown):
    shown.tell("failure", FAILED, epoch="1.1")
    shown.tell("failure", DIED, worker="slot1-1.1", rank=1)
    shown.tell("epoch")
    shown.metrics.end()
    assert failures(shown) == {"died": 1}


@pytest.mark.parametrize("spare", [{}, {"worker": "slot3-1.3", "rank": None}])
def test_one_that_no_members_loss_explains_counts_with_the_next_epoch(
    shown: Shown, spare: dict[str, Any]
):
    shown.tell("failure", FAILED, epoch="1.1")
    assert failures(shown) == {}, "a death may be heard of yet"
    if spare:
        shown.tell("failure", DIED, **spare)
    shown.tell("epoch")
    assert failures(shown) == {CUT: 1} | ({"died": 1} if spare else {})
    shown.tell("failure", DIED, worker="slot1-1.1", rank=1)
    assert failures(shown)[CUT] == 1, "what comes after that is another loss"


def test_one_that_nothing_explains_until_the_end_counts_then(shown: Shown):
    shown.tell("failure", FAILED, epoch="1.1")
    shown.metrics.end()
    shown.metrics.end()
    assert failures(shown) == {CUT: 1}


def test_a_new_coordinator_knows_what_may_yet_be_explained():
    shown = Shown(make_event("failure", FAILED, epoch="1.1"))
    shown.tell("epoch")
    assert failures(shown) == {CUT: 1}
    shown = Shown(make_event("failure", FAILED, epoch="1.1"))
    shown.tell("failure", DIED, worker="slot1-1.1", rank=1)
    assert failures(shown) == {"died": 1}


def test_a_recovery_is_shown_by_phase(shown: Shown):
    shown.tell("epoch", members=["a"])
    shown.tell("recovered", **RECOVERED)
    assert shown.observed() == {
        "recovery_duration_seconds|decide": [pytest.approx(0.1)],
        "recovery_duration_seconds|form": [pytest.approx(0.2)],
        "recovery_duration_seconds|heal": [pytest.approx(0.4)],
        "recovery_duration_seconds|step": [pytest.approx(0.8)],
    }
    assert shown.value(metrics.RECOVERY_SECONDS, phase="step") == pytest.approx(0.8)
    assert shown.value(metrics.RECOVERIES) == 1
    assert shown.value(metrics.STEPS_LOST) == 2
    assert shown.value(metrics.EPOCHS) == 1


def test_steps_that_are_done_again_are_counted_once_each(shown: Shown):
    resumed = {"step": 20, "source": "a checkpoint", "epoch": [1, 1]}
    shown.tell("resumed", **resumed)  # of an earlier release
    shown.tell("rewound", to_step=20, position=90, steps_lost=5)
    shown.tell("resumed", **resumed, steps_lost=5, recovering=False)
    assert shown.value(metrics.STEPS_LOST) == 5
    later = resumed | {"epoch": [2, 1]}
    shown.tell("resumed", **later, steps_lost=7, recovering=False)  # another attempt
    assert shown.value(metrics.STEPS_LOST) == 12


def test_steps_that_a_rewind_makes_void_are_counted_once_though_a_member_dies_then(shown: Shown):
    shown.tell("rewound", to_step=20, position=90, steps_lost=11)
    shown.tell("resumed", step=20, epoch=[1, 2], steps_lost=11, recovering=True)
    shown.tell("recovered", **RECOVERED | {"epoch": "1.2", "steps_lost": 11})
    assert shown.value(metrics.STEPS_LOST) == 11


def test_a_recovery_that_needs_several_epochs_has_lost_what_each_of_them_did(shown: Shown):
    for epoch, lost in ([1, 2], 4), ([1, 3], 1):
        shown.tell("resumed", step=20, epoch=epoch, steps_lost=lost, recovering=True)
    shown.tell("recovered", **RECOVERED | {"epoch": "1.3", "steps_lost": 1})
    assert shown.value(metrics.STEPS_LOST) == 5


def test_a_clock_that_is_behind_makes_no_negative_time(shown: Shown):
    shown.tell("recovered", **RECOVERED | {"committed_at_s": 10.0})
    assert shown.observed()["recovery_duration_seconds|step"] == [0.0]


def test_devices_are_shown_by_what_share_of_their_peak_they_did(shown: Shown):
    work = WorkDescribed(6000, 8000, tokens_per_sample=16, device="NVIDIA A", peak_flops=1e6)
    shown.tell("work", **asdict(work))
    shown.metrics.on_step(replace(STEP, world_size=2, phases_s={"compute": 1.5, "user": 0.5}))
    tokens = BATCH * 16
    assert shown.value(metrics.TOKENS) == tokens
    assert shown.value(metrics.MFU) == pytest.approx(6000 * tokens / 2.0 / (2 * 1e6))
    assert shown.value(metrics.HFU) == pytest.approx(8000 * tokens / 2.0 / (2 * 1e6))


def test_of_an_unknown_device_no_share_is_shown(shown: Shown):
    shown.metrics.on_step(STEP)
    assert shown.value(metrics.TOKENS) is None
    shown.tell("work", **asdict(WorkDescribed(6000, 8000, 16, "cpu", None)))
    shown.metrics.on_step(replace(STEP, step=2))
    assert shown.value(metrics.TOKENS) == BATCH * 16
    assert shown.value(metrics.MFU) is None


def test_of_devices_that_differ_no_share_is_shown_until_a_later_attempt(shown: Shown):
    one = WorkDescribed(6000, 8000, tokens_per_sample=16, device="NVIDIA A", peak_flops=1e6)
    other = replace(one, device="NVIDIA B", peak_flops=3e6)
    shown.tell("work", **asdict(one))
    shown.step()
    assert shown.value(metrics.MFU) is not None
    shown.tell("work", **asdict(other))
    shown.export.forget()
    shown.step(step=2)
    assert shown.value(metrics.TOKENS) == BATCH * 16
    assert shown.value(metrics.MFU) is None
    shown.tell("attempt", attempt=2)
    shown.tell("work", **asdict(other))
    shown.step(step=3)
    assert shown.value(metrics.MFU) is not None


def test_a_new_coordinator_knows_how_much_is_computed():
    work = WorkDescribed(6000, 8000, tokens_per_sample=16, device="NVIDIA A", peak_flops=1e6)
    shown = Shown(make_event("work", **asdict(work)))
    shown.metrics.on_step(STEP)
    assert shown.value(metrics.MFU) is not None


def test_a_checkpoint_grows_older_until_the_next(shown: Shown):
    shown.metrics.tick(3, 1)
    assert shown.value(metrics.CHECKPOINT_AGE) is None
    shown.tell("checkpoint", step=20, num_bytes_written=100)
    made = (20, shown.clock.unix_s())
    shown.clock.now_s += 7.0
    shown.metrics.tick(3, 1, made)
    assert shown.value(metrics.CHECKPOINT_AGE) == 7.0
    assert shown.value(metrics.CHECKPOINT_STEP) == 20
    assert shown.value(metrics.CHECKPOINTS) == 1
    assert shown.value(metrics.CHECKPOINT_BYTES) == 100
    assert shown.value(metrics.WORLD_SIZE) == 3
    assert shown.value(metrics.SPARES) == 1


def test_what_the_job_asks_for_is_shown_beside_what_there_is(shown: Shown):
    shown.metrics.tick(1, 0)
    workers = make_job().workers
    assert shown.value(metrics.TARGET_WORLD_SIZE) == workers.target
    assert shown.value(metrics.TARGET_SPARES) == workers.spares


def test_each_look_at_the_run_is_shown_with_its_time(shown: Shown):
    shown.metrics.tick(3, 1)
    first = shown.value(metrics.COORDINATOR_TIMESTAMP)
    shown.clock.now_s += 7.0
    shown.metrics.tick(3, 1)
    assert first is not None
    assert shown.value(metrics.COORDINATOR_TIMESTAMP) == first + 7.0


def step_age(shown: Shown) -> float | None:
    shown.metrics.tick(3, 0)
    return shown.value(metrics.STEP_AGE)


def test_it_is_told_for_how_long_no_step_was_committed(shown: Shown):
    begun_s = shown.clock.unix_s()
    shown.clock.now_s += 5.0
    assert step_age(shown) == 5.0, "since there is a coordinator"
    shown.tell("submitted", at_s=begun_s + 3.0)
    assert step_age(shown) == 2.0, "since the run began"
    shown.clock.now_s += 90.0
    assert step_age(shown) == 92.0
    shown.step()
    assert step_age(shown) == 0.0
    shown.clock.now_s += 7.0
    assert step_age(shown) == 7.0
    shown.clock.now_s -= 60.0
    assert step_age(shown) == 0.0, "of a clock that was set back"


@pytest.mark.parametrize(
    ("began_s_ago", "stepped_s_ago", "age_s"),
    [((500.0,), None, 500.0), ((500.0,), 30.0, 30.0), ((900.0, 20.0), 400.0, 20.0)],
    ids=["no step yet", "it goes on", "the step is of an earlier attempt"],
)
def test_a_new_coordinator_knows_for_how_long_no_step_was_committed(
    began_s_ago: tuple[float, ...], stepped_s_ago: float | None, age_s: float
):
    now_s = FakeClock().unix_s()
    events = [make_event("attempt", at_s=now_s - each) for each in began_s_ago]
    stepped_at_s = 0.0 if stepped_s_ago is None else now_s - stepped_s_ago
    assert step_age(Shown(*events, stepped_at_s=stepped_at_s)) == age_s


def test_a_checkpoint_that_is_gone_is_not_shown(shown: Shown):
    now_s = shown.clock.unix_s()
    shown.metrics.tick(3, 0, (20, now_s - 5.0))
    shown.metrics.tick(3, 0, (10, now_s - 15.0))
    assert shown.value(metrics.CHECKPOINT_STEP) == 10
    assert shown.value(metrics.CHECKPOINT_AGE) == 15.0
    shown.metrics.tick(3, 0, None)
    shown.export.forget()
    assert shown.value(metrics.CHECKPOINT_STEP) is None
    assert shown.value(metrics.CHECKPOINT_AGE) is None


def test_checkpoints_of_an_earlier_coordinator_are_not_counted():
    shown = Shown(make_event("checkpoint", at_s=990.0, step=20, num_bytes_written=100))
    assert shown.value(metrics.CHECKPOINTS) is None


def test_a_checkpoint_that_is_skipped_is_counted(shown: Shown):
    shown.metrics.on_checkpoint_skipped()
    assert shown.value(metrics.CHECKPOINTS_SKIPPED) == 1


def test_every_metric_of_the_table_can_be_made_in_ray():
    export = RayExport("job-1")
    for metric in METRICS:
        labels = {name: metric.labels.get(name, ["any"])[0] for name in metric.label_names[1:]}
        match metric.kind:
            case Kind.COUNTER:
                export.add(metric, 0.0, **labels)
                export.add(metric, 1.0, **labels)
            case Kind.GAUGE:
                export.show(metric, math.nan, **labels)
            case Kind.HISTOGRAM:
                export.observe(metric, 1.0, **labels)
