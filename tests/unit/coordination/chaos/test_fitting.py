"""A plan that can't be carried out on a job is refused before anything starts."""

from typing import Any, get_args

import pytest

from trainflow.config.chaos_plan import ChaosPlan, FaultPhase
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.fitting import Files, cpus_of_a_node, require_fit
from trainflow.errors import ConfigError


def make_job(**changes: Any) -> JobConfig:
    job = {
        "name": "tiny",
        "entrypoint": "jobs.tiny:train",
        "training": {"max_steps": 10, "global_batch_size": 8, "microbatch_size": 2},
        "data": {"dataset": "jobs.tiny:open_dataset"},
        "workers": {"minimum": 1, "target": 3, "spares": 2},
    }
    return JobConfig.model_validate(job | changes)


SCALED = make_job().training.model_dump() | {"batch_scaling": "linear"}


def make_plan(*faults: dict[str, Any], **changes: Any) -> ChaosPlan:
    return ChaosPlan.model_validate({"schedule": list(faults)} | changes)


KILL = {"kind": "kill", "at_s": 1}
FLIP = {"kind": "flip", "at_s": 1}
RESTORING = {"kind": "kill", "at_step": 5, "phase": "restoring"}
DROP = {"kind": "drop_node", "at_s": 1}
CUT = {"kind": "partition", "at_s": 1}


@pytest.mark.parametrize(
    "fault",
    [
        KILL,
        FLIP,
        DROP,
        KILL | {"rank": 2},
        KILL | {"target": "spare"},
        {"kind": "kill", "at_step": 9},
        {"kind": "flip", "rank": 1, "at_step": 10},
        *(
            {"kind": "kill", "rank": 0, "at_step": 10, "phase": phase}
            for phase in get_args(FaultPhase)
        ),
    ],
)
def test_what_fits_passes(fault: dict[str, Any]):
    require_fit(make_plan(fault), make_job(), {}, on_own_cluster=True)


@pytest.mark.parametrize(
    ("fault", "job", "told"),
    [
        (KILL | {"rank": 3}, {}, "schedule.0.rank: got 3; expected at most 2, with workers.target"),
        (
            {"kind": "kill", "at_step": 11},
            {},
            "schedule.0.at_step: got 11; expected at most training.max_steps = 10",
        ),
        (
            {"kind": "kill", "at_step": 10},
            {},
            "schedule.0.at_step: got 10; expected less than training.max_steps = 10, with whose "
            "commit the run is over; lower it, or have more steps, or name a phase of that step",
        ),
        (
            {"kind": "kill", "target": "coordinator", "at_step": 10},
            {},
            "with whose commit the run is over; lower it, or have more steps",
        ),
        (DROP | {"at_step": 10, "at_s": None}, {}, "schedule.0.at_step: got 10; expected less"),
        (
            KILL | {"target": "spare"},
            {"workers": {"minimum": 1, "target": 3}},
            "schedule.0.target: got 'spare'; expected another target with workers.spares = 0",
        ),
        (
            FLIP,
            {"parallel": {"mode": "fsdp"}},
            "schedule.0.kind: got 'flip'; expected another kind with parallel.mode = fsdp",
        ),
        (
            FLIP,
            {"communication": {"compression": "int8"}},
            "expected another kind with compressed gradients (communication)",
        ),
        (
            FLIP,
            {"workers": {"minimum": 1, "target": 1}},
            "expected another kind with workers.target = 1",
        ),
        (
            RESTORING | {"rank": 1},
            {},
            "schedule.0.rank: got 1; expected 0 with phase = restoring and parallel.mode = ddp, "
            "where rank 0 reads for all; change it, or have it in phase healing",
        ),
        (
            RESTORING | {"phase": "snapshot", "rank": 1},
            {"snapshot": {"every_steps": None}},
            "schedule.0.phase: got 'snapshot'; expected another with snapshot.every_steps = null "
            "and checkpoint.url = null; change it, or have states kept",
        ),
        (
            RESTORING | {"target": "keeper"},
            {"snapshot": {"every_steps": None}},
            "schedule.0.phase: got 'restoring'; expected another for a Keeper with "
            "snapshot.every_steps = null; change it, or have states kept",
        ),
        (
            KILL,
            {"checkpoint": {"url": "/tmp/a", "resume": "/tmp/b"}},
            "checkpoint.resume: got '/tmp/b'; expected auto or never",
        ),
        (
            KILL,
            {"workers": {"minimum": 1, "target": 3, "resources": {"GPU": 1}}},
            "workers.resources.GPU: got 1; expected 0 on a cluster that the campaign starts",
        ),
        (
            KILL,
            {"training": SCALED},
            "training.batch_scaling: got 'linear'; expected 'none'",
        ),
        (
            KILL,
            {
                "monitoring": {"anomalies": {"action": "rewind"}},
                "checkpoint": {"url": "/data/checkpoints", "every_steps": 5},
            },
            "monitoring.anomalies.action: got 'rewind'; expected 'alert' or 'skip'",
        ),
    ],
)
def test_what_does_not_fit_is_named(fault: dict[str, Any], job: dict[str, Any], told: str):
    with pytest.raises(ConfigError) as refusal:
        require_fit(make_plan(fault), make_job(**job), {}, on_own_cluster=True)
    assert told in str(refusal.value)


def test_who_restores_a_state_may_be_any_rank_of_a_sharded_model():
    plan, sharded = make_plan(RESTORING | {"rank": 1}), make_job(parallel={"mode": "fsdp"})
    require_fit(plan, sharded, {}, on_own_cluster=True)
    require_fit(make_plan(RESTORING | {"rank": 0}), make_job(), {}, on_own_cluster=True)


def test_a_keeper_does_nothing_by_itself_on_a_cluster_that_is_somebody_s():
    plan = make_plan(RESTORING | {"target": "keeper"})
    require_fit(plan, make_job(), {}, on_own_cluster=True)
    with pytest.raises(ConfigError) as refusal:
        require_fit(plan, make_job(), {}, on_own_cluster=False)
    told = "schedule.0.phase: got 'restoring'; expected null with target = keeper and --address"
    assert told in str(refusal.value)


def test_the_file_is_named_in_which_something_is_to_be_changed():
    plan, job = make_plan(KILL | {"rank": 3}), make_job(training=SCALED)
    with pytest.raises(ConfigError) as refusal:
        require_fit(plan, job, {}, on_own_cluster=True, files=Files("plan.yaml", "job.yaml"))
    _, first, second = str(refusal.value).splitlines()
    assert first.strip().startswith("plan.yaml: schedule.0.rank: got 3")
    assert second.strip().startswith("job.yaml: training.batch_scaling: got 'linear'")


def test_a_node_is_dropped_only_where_it_is_ours_and_there_is_another():
    with pytest.raises(ConfigError, match="expected another kind with --address"):
        require_fit(make_plan(DROP), make_job(), {}, on_own_cluster=False)
    for fault in (DROP, CUT):
        one = make_plan(fault, cluster={"nodes": 1})
        with pytest.raises(ConfigError, match=r"cluster\.nodes: got 1; expected at least 2"):
            require_fit(one, make_job(), {}, on_own_cluster=True)


def test_hosts_that_are_cut_off_reach_nothing_outside():
    for url in ("/tmp/a", "file:///tmp/a"):
        job = make_job(checkpoint={"url": url})
        require_fit(make_plan(CUT), job, {}, on_own_cluster=True)
    with pytest.raises(ConfigError, match=r"checkpoint\.url: got 's3://b/a'; expected a local"):
        require_fit(
            make_plan(CUT), make_job(checkpoint={"url": "s3://b/a"}), {}, on_own_cluster=True
        )
    job = make_job()
    data = job.data.model_copy(update={"validation_url": "http://host/v"})
    elsewhere = job.model_copy(update={"data": data})
    with pytest.raises(ConfigError, match=r"data\.validation_url: got 'http://host/v'; expected"):
        require_fit(make_plan(CUT), elsewhere, {}, on_own_cluster=True)


S3 = {"checkpoint": {"url": "s3://bucket/a", "every_steps": 5}}
HANG = {"kind": "hang_store", "at_s": 1}
HTTP = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}


def test_a_store_hangs_where_it_is_reached_through_an_endpoint():
    require_fit(make_plan(HANG), make_job(**S3), HTTP, on_own_cluster=True)


@pytest.mark.parametrize(
    ("job", "env", "is_own", "told"),
    [
        (S3, HTTP, False, "--address: its processes reach the store by themselves; leave it"),
        ({"checkpoint": {"url": "/tmp/a"}}, HTTP, True, "checkpoint.url = '/tmp/a', which is no"),
        (S3, {}, True, "AWS_ENDPOINT_URL = '', which is no http://HOST:PORT"),
        (S3, {"AWS_ENDPOINT_URL": "https://s3"}, True, "AWS_ENDPOINT_URL = 'https://s3'"),
    ],
)
def test_a_store_that_can_not_be_hung_is_named(
    job: dict[str, Any], env: dict[str, str], told: str, *, is_own: bool
):
    with pytest.raises(ConfigError) as refusal:
        require_fit(make_plan(HANG), make_job(**job), env, on_own_cluster=is_own)
    assert f"schedule.0.kind: got 'hang_store'; expected another kind with {told}" in str(
        refusal.value
    )


def test_a_gpu_job_may_run_on_somebody_s_cluster():
    job = make_job(workers={"minimum": 1, "target": 3, "resources": {"GPU": 1}})
    require_fit(make_plan(KILL), job, {}, on_own_cluster=False)


@pytest.mark.parametrize(("nodes", "cpus"), [(1, 5), (2, 5), (3, 3), (6, 1)])
def test_all_workers_fit_on_the_nodes_that_are_left_when_one_is_gone(nodes: int, cpus: int):
    assert cpus_of_a_node(make_plan(KILL, cluster={"nodes": nodes}), make_job()) == cpus


@pytest.mark.parametrize(
    ("of_each", "nodes", "cpus"),
    [(0.5, 1, 3), (0.5, 2, 3), (0.5, 4, 1), (1, 4, 2), (2, 4, 4), (2, 6, 2), (3, 4, 6), (3, 3, 9)],
)
def test_a_node_has_room_for_whole_workers(of_each: float, nodes: int, cpus: int):
    workers = {"minimum": 1, "target": 3, "spares": 2, "resources": {"CPU": of_each}}
    plan, job = make_plan(KILL, cluster={"nodes": nodes}), make_job(workers=workers)
    assert cpus_of_a_node(plan, job) == cpus
    assert (nodes - 1 or 1) * (cpus // of_each) >= 5


def test_a_world_that_may_grow_has_room_and_ranks_to_grow_to():
    job = make_job(workers={"minimum": 1, "target": 2, "maximum": 4, "spares": 1})
    plan = make_plan(KILL | {"rank": 3}, cluster={"nodes": 2})
    require_fit(plan, job, {}, on_own_cluster=True)
    assert cpus_of_a_node(plan, job) == 5
    with pytest.raises(ConfigError, match=r"at most 3, with workers\.maximum = 4"):
        require_fit(make_plan(KILL | {"rank": 4}), job, {}, on_own_cluster=True)
