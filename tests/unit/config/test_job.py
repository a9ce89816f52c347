"""Bounds and cross-field checks of the job file's settings."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainflow.config import JobConfig
from trainflow.config.masking import kept_settings

SETTINGS: dict[str, Any] = {
    "name": "pretrain-lm",
    "entrypoint": "jobs.pretrain_lm:train",
    "training": {"max_steps": 10, "global_batch_size": 8, "microbatch_size": 2},
    "data": {"url": "file:///corpus"},
    "workers": {"minimum": 1, "target": 2},
}


def settings_with(**values: object) -> dict[str, Any]:
    """The valid settings with some changed; `training__seed` stands for `training.seed`."""
    settings = copy.deepcopy(SETTINGS)
    for path, value in values.items():
        *sections, key = path.split("__")
        inner = settings
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return settings


def test_what_is_left_out_takes_its_default():
    config = JobConfig.model_validate(SETTINGS)
    assert config.training.clip_norm == 1.0
    assert config.training.precision == "fp32"
    assert config.training.max_skipped_steps == 5
    assert config.data.order == "shuffled"
    assert config.workers.spares == 0
    assert config.workers.resources.CPU == 1
    assert config.communication.bucket_bytes == 4 * 1024 * 1024
    assert config.failures.hang_timeout_s == "auto"
    assert config.labels == {}


def test_a_configuration_is_frozen():
    config = JobConfig.model_validate(SETTINGS)
    with pytest.raises(ValidationError, match="frozen"):
        config.training.seed = 1  # pyright: ignore[reportAttributeAccessIssue]  the point


def test_every_setting_is_explained():
    def unexplained(model: Any, prefix: str = "") -> list[str]:
        found: list[str] = []
        for name, field in model.model_fields.items():
            if not field.description:
                found.append(prefix + name)
            if hasattr(field.annotation, "model_fields"):
                found += unexplained(field.annotation, f"{prefix}{name}.")
        return found

    assert unexplained(JobConfig) == []


def test_a_configuration_survives_a_round_trip_through_json():
    config = JobConfig.model_validate(
        settings_with(failures__hang_timeout_s=3.5, args={"lr": 3e-4})
    )
    assert JobConfig.model_validate_json(config.model_dump_json()) == config


def test_numbers_that_strict_json_lacks_are_sent_and_kept_as_null():
    args = {"lr": math.inf, "bounds": [-math.inf, {"upper": math.nan}], "hidden": 8}
    config = JobConfig.model_validate(settings_with(args=args))
    sent = JobConfig.model_validate_json(config.as_sent())
    assert repr(sent.args) == repr(args), "no NaN equals another"
    nothing = {"lr": None, "bounds": [None, {"upper": None}], "hidden": 8}
    for each in (config, sent):
        assert each.model_dump(mode="json")["args"] == nothing
        json.dumps(kept_settings(each), allow_nan=False)


@pytest.mark.parametrize(
    "values",
    [
        {"training__clip_norm": None},
        {"training__clip_norm": 2},
        {"training__seed": 2**63 - 1},
        {"training__global_batch_size": 2, "training__microbatch_size": 1},
        {"failures__hang_timeout_s": 1},
        {"failures__max_failures": None},
        {"failures__preemption_notice": "/run/preempted"},
        {"failures__preemption_notice": None},
        {"failures__max_preemptions": 0},
        {"failures__max_hangs": None},
        {"failures__max_lost_clusters": 3, "checkpoint__url": "x"},
        {"failures__isolate_after": 1},
        {"failures__lease_s": 5000.0, "failures__hang_timeout_s": 5000.0},
        {"failures": {"probe_after_s": 0.1, "isolate_after": 1}},
        {"monitoring__anomalies__spike_z": 3.0},
        {"monitoring__sinks": [{"kind": "mlflow", "folder": "/data", "project": "p"}]},
        {"monitoring__anomalies__stalled_after_steps": 256},
        {"monitoring__anomalies__stalled_after_steps": None},
        {
            "failures__replace_stragglers": True,
            "workers__spares": 1,
            "communication__compression": "int8",
        },
        {"parallel": {"mode": "fsdp"}, "failures": {"replace_stragglers": False}},
        {"workers__resources": {"CPU": 0.5, "GPU": 0.25}, "workers__target": 1},
        {"workers__maximum": 2},
        {"workers__maximum": 4},
        {"workers__maximum": 99, "training__batch_scaling": "sqrt"},
        {"workers__maximum": None},
        {"workers__resources": {"CPU": 1.0001, "GPU": 2}},
        {"communication": {"hierarchical": False}, "training__deterministic": True},
        {"communication": {"hierarchical": True, "per_parameter": {"*": "int4"}}},
        {"parallel": {"mode": "zero2", "activation_checkpointing": "full"}},
        {"parallel": {"mode": "fsdp", "cpu_offload": True}, "workers__resources": {"GPU": 2}},
        {"parallel": {"mode": "zero1", "gather": "bf16"}},
        {"parallel": {"mode": "hsdp", "gather": "fp8"}, "workers": {"minimum": 3, "target": 6}},
        {"parallel": {"mode": "hsdp", "shard": 2}, "workers": {"minimum": 2, "target": 6}},
        {"parallel": {"mode": "hsdp", "replicate": 3}, "workers": {"minimum": 2, "target": 6}},
        {"parallel": {"mode": "hsdp"}, "workers": {"minimum": 3, "target": 6}},
        {"communication": {"warmup_steps": 5, "per_parameter": {"head.*": "int8"}}},
        {"communication": {"compression": "top_k", "per_parameter": {"*.bias": "none"}}},
        {"checkpoint": {"url": "./never"}},
        {"checkpoint": {"url": None, "keep_last": 3, "resume": "auto", "accept": []}},
        {"checkpoint": {"resume": "never"}},
        {"checkpoint": {"resume": "s3://other/run", "accept": ["training.seed"]}},
        {"checkpoint": {"url": "x", "accept": ["args.lr", "entrypoint", "training.seed"]}},
        {"checkpoint": {"url": "x", "accept": ["data.url", "parallel.mode", "workers.target"]}},
        {"checkpoint": {"url": "x", "accept": ["training.of_another_release"]}},
        {"checkpoint": {"url": "x", "accept": ["training.lr"]}},
        {"data": {"dataset": "jobs.toy:dataset"}},
        {"name": "0"},
        {"name": "a" * 63},
        {"entrypoint": "train:main"},
    ],
)
def test_what_is_on_the_right_side_of_a_bound_is_accepted(values: dict[str, object]):
    JobConfig.model_validate(settings_with(**values))


@pytest.mark.parametrize(
    ("values", "setting", "expected"),
    [
        ({"schema_version": 2}, "schema_version", "should be 1"),
        ({"name": "Pretrain"}, "name", "match pattern"),
        ({"name": "-a"}, "name", "match pattern"),
        ({"name": "a" * 64}, "name", "match pattern"),
        ({"entrypoint": "jobs.pretrain_lm"}, "entrypoint", "module:function"),
        ({"entrypoint": "jobs/pretrain_lm.py:train"}, "entrypoint", "module:function"),
        ({"entrypoint": ":train"}, "entrypoint", "module:function"),
        ({"entrypoint": "jobs.toy:"}, "entrypoint", "module:function"),
        ({"entrypoint": "jobs.toy:a.b"}, "entrypoint", "module:function"),
        ({"training__max_steps": 0}, "training.max_steps", "greater than 0"),
        ({"training__max_steps": 1.5}, "training.max_steps", "valid integer"),
        ({"training__max_steps": "10"}, "training.max_steps", "valid integer"),
        ({"training__max_steps": True}, "training.max_steps", "valid integer"),
        ({"training__precision": "fp8"}, "training.precision", "'fp32', 'bf16' or 'fp16'"),
        ({"training__clip_norm": 0}, "training.clip_norm", "greater than 0"),
        ({"training__clip_norm": float("nan")}, "training.clip_norm", "finite number"),
        ({"training__clip_norm": float("inf")}, "training.clip_norm", "finite number"),
        ({"training__seed": -1}, "training.seed", "greater than or equal to 0"),
        ({"training__seed": 2**63}, "training.seed", "less than or equal to"),
        ({"training__deterministic": "no"}, "training.deterministic", "valid boolean"),
        ({"training__deterministic": 1}, "training.deterministic", "valid boolean"),
        ({"data__order": "stream"}, "data.order", "'shuffled' or 'sequential'"),
        ({"data__prefetch_batches": 0}, "data.prefetch_batches", "greater than 0"),
        ({"workers__minimum": 0}, "workers.minimum", "greater than 0"),
        ({"workers__maximum": 0}, "workers.maximum", "greater than 0"),
        ({"workers__spares": -1}, "workers.spares", "greater than or equal to 0"),
        ({"workers__resources": {"CPU": -1}}, "workers.resources.CPU", "greater than or equal"),
        ({"workers__resources": {"CPU": 1.00005}}, "workers.resources.CPU", "at most 4 decimals"),
        ({"workers__resources": {"GPU": 0.00001}}, "workers.resources.GPU", "at most 4 decimals"),
        ({"workers__resources": {"GPU": 1.5}}, "workers.resources.GPU", "a whole number"),
        ({"parallel__mode": "tp"}, "parallel.mode", "'ddp', 'zero1', 'zero2', 'fsdp' or 'hsdp'"),
        ({"parallel__activation_checkpointing": True}, "parallel", "'none', 'selective' or 'full'"),
        ({"parallel__gather": "int8"}, "parallel.gather", "'fp32', 'bf16' or 'fp8'"),
        ({"parallel__cpu_offload": 1}, "parallel.cpu_offload", "valid boolean"),
        ({"communication__backend": "mpi"}, "communication.backend", "'auto', 'gloo' or 'nccl'"),
        ({"communication__bucket_bytes": 0}, "communication.bucket_bytes", "greater than 0"),
        (
            {"communication__compression": "topk"},
            "communication.compression",
            "'none', 'bf16', 'fp8', 'int8', 'int4', 'top_k', 'power_sgd' or 'auto'",
        ),
        ({"communication__top_k_fraction": 0}, "communication.top_k_fraction", "greater than 0"),
        ({"communication__top_k_fraction": 1.5}, "communication.top_k_fraction", "less than or"),
        ({"communication__power_sgd_rank": 0}, "communication.power_sgd_rank", "greater than 0"),
        ({"communication__warmup_steps": -1}, "communication.warmup_steps", "greater than or"),
        ({"communication__hierarchical": "auto"}, "communication.hierarchical", "valid boolean"),
        ({"failures__max_failures": -1}, "failures.max_failures", "greater than or equal to 0"),
        ({"failures__window_s": 0.5}, "failures.window_s", "greater than or equal to 1"),
        (
            {"failures__hang_timeout_s": 0.9},
            "failures.hang_timeout_s",
            "greater than or equal to 1",
        ),
        ({"failures__lease_s": 1}, "failures.lease_s", "greater than or equal to 3"),
        ({"failures__preemption_notice": ""}, "failures.preemption_notice", "the path of a file"),
        ({"failures__preemption_notice": "/run/"}, "failures", "the path of a file"),
        ({"failures__preemption_notice": "preempted"}, "failures", "from the root"),
        ({"failures__preemption_notice": "/run/.."}, "failures", "the path of a file"),
        ({"failures__preemption_notice": "/run/a\n"}, "failures", "the path of a file"),
        ({"failures__preemption_notice": "/run/{hots}"}, "failures", "no other braces than {host}"),
        ({"failures__hang_timeout_s": 5e9}, "failures.hang_timeout_s", "less than or equal to"),
        ({"failures__lease_s": math.inf}, "failures.lease_s", "less than or equal to 2592000"),
        ({"failures__window_s": 1e10}, "failures.window_s", "less than or equal to 2592000"),
        ({"failures__max_lost_clusters": -1}, "failures.max_lost_clusters", "greater than or"),
        ({"failures__max_preemptions": -1}, "failures.max_preemptions", "greater than or equal"),
        ({"failures__max_hangs": 0}, "failures.max_hangs", "greater than 0"),
        ({"failures__isolate_after": 0}, "failures.isolate_after", "greater than 0"),
        ({"failures__probe_after_s": 0}, "failures.probe_after_s", "greater than 0"),
        ({"monitoring__anomalies__spike_z": 2.9}, "monitoring.anomalies.spike_z", "equal to 3"),
        ({"monitoring__anomalies__norm_z": math.inf}, "monitoring.anomalies.norm_z", "finite"),
        (
            {"monitoring__sinks": [{"kind": "mlflow", "folder": "data"}]},
            "monitoring.sinks.0.folder",
            "an absolute path",
        ),
        (
            {"monitoring__sinks": [{"kind": "csv", "folder": "/data"}]},
            "monitoring.sinks.0.kind",
            "tensorboard",
        ),
        (
            {"monitoring__sinks": [{"kind": "wandb", "folder": "/data", "project": ""}]},
            "monitoring.sinks.0.project",
            "at least 1 character",
        ),
        ({"monitoring__anomalies__rise_ratio": 0}, "monitoring.anomalies.rise_ratio", "than 0"),
        (
            {"monitoring__anomalies__stalled_after_steps": 255},
            "monitoring.anomalies.stalled_after_steps",
            "equal to 256",
        ),
        ({"monitoring__log_every_steps": 0}, "monitoring.log_every_steps", "greater than 0"),
        ({"labels": {"team": 3}}, "labels.team", "valid string"),
        ({"service": {"url": "s3://b"}}, "service", "not permitted"),
        ({"checkpoint": {"url": "x", "resume": "latest"}}, "checkpoint.resume", "auto"),
        ({"checkpoint": {"url": ""}}, "checkpoint.url", "the URL or path of a folder, or null"),
        (
            {"checkpoint": {"url": "never"}},
            "checkpoint.url",
            "for a folder of that name say ./never",
        ),
        ({"checkpoint": {"url": "auto"}}, "checkpoint.url", "auto is for checkpoint.resume"),
        ({"snapshot": {"every_steps": 0}}, "snapshot.every_steps", "greater than 0"),
        ({"snapshot": {"replicas": -1}}, "snapshot.replicas", "greater than or equal to 0"),
    ],
)
def test_what_is_out_of_bounds_is_refused(values: dict[str, object], setting: str, expected: str):
    with pytest.raises(ValidationError) as refusal:
        JobConfig.model_validate(settings_with(**values))
    details = refusal.value.errors()
    assert all(".".join(map(str, each["loc"])).startswith(setting) for each in details)
    assert any(expected in each["msg"] for each in details)


@pytest.mark.parametrize(
    ("values", "got", "expected", "change"),
    [
        (
            {"training__global_batch_size": 3, "training__microbatch_size": 4},
            "training.microbatch_size: got 4",
            "at most training.global_batch_size = 3",
            "raise training.global_batch_size",
        ),
        (
            {"training__global_batch_size": 2, "workers__target": 3},
            "training.global_batch_size: got 2",
            "at least workers.target = 3",
            "the global batch is below the world",
        ),
        (
            {"workers__minimum": 3},
            "workers.minimum: got 3",
            "at most workers.target = 2",
            "raise workers.target",
        ),
        (
            {"workers__maximum": 1},
            "workers.maximum: got 1",
            "at least workers.target = 2",
            "leave it out",
        ),
        (
            {"workers__maximum": 99},
            "training.global_batch_size: got",
            "at least workers.maximum = 99",
            "lower workers.maximum",
        ),
        (
            {"data__url": None},
            "data: got url = None and dataset = None",
            "exactly one of data.url and data.dataset",
            "set data.url",
        ),
        (
            {"data__dataset": "jobs.toy:dataset"},
            "dataset = 'jobs.toy:dataset'",
            "exactly one of data.url and data.dataset",
            "set data.url",
        ),
        (
            {"failures": {"replace_stragglers": True}, "parallel": {"mode": "zero2"}},
            "failures.replace_stragglers: got true",
            "false with parallel.mode = zero2",
            "leave it out",
        ),
        (
            {"failures": {"replace_stragglers": True}, "communication__compression": "top_k"},
            "failures.replace_stragglers: got true",
            "false with error feedback (communication.error_feedback)",
            "leave it out",
        ),
        (
            {"failures": {"max_lost_clusters": 1}},
            "failures.max_lost_clusters: got 1",
            "expected 0 without checkpoint.url",
            "set checkpoint.url",
        ),
        ({"failures__lease_s": 901.0}, "failures.lease_s: got 901", "at most 900, as", "lower it"),
        (
            {"failures": {"isolate_after": 50, "max_failures": 3}},
            "failures.isolate_after: got 50",
            "at most failures.max_failures = 3",
            "raise failures.max_failures",
        ),
        (
            {"failures": {"replace_stragglers": True}, "workers__spares": 0},
            "failures.replace_stragglers: got true",
            "false with workers.spares = 0",
            "keep a spare",
        ),
        (
            {"failures": {"spot_check_every_steps": 10**9}, "training__deterministic": True},
            "failures.spot_check_every_steps: got 1000000000",
            "at most training.max_steps",
            "lower it",
        ),
        (
            {"failures": {"spot_check_every_steps": 5}},
            "failures.spot_check_every_steps: got 5",
            "null with training.deterministic = false",
            "set that to true",
        ),
        (
            {
                "failures": {"spot_check_every_steps": 5},
                "parallel": {"mode": "fsdp"},
                "training__deterministic": True,
            },
            "failures.spot_check_every_steps: got 5",
            "null with parallel.mode = fsdp",
            "set that to ddp",
        ),
        (
            {"communication": {"error_feedback": True}},
            "communication.error_feedback: got true",
            "false with communication.compression = none",
            "choose a compression",
        ),
        (
            {"communication": {"error_feedback": False, "compression": "top_k"}},
            "communication.error_feedback: got false",
            "true with communication.compression = top_k",
            "leave it out",
        ),
        (
            {"communication": {"power_sgd_rank": 8, "compression": "top_k"}},
            "communication.power_sgd_rank: got 8",
            "nothing with communication.compression = top_k",
            "set communication.compression to power_sgd",
        ),
        (
            {"communication": {"hierarchical": True, "compression": "top_k"}},
            "communication.hierarchical: got true",
            "false or null with communication.compression = top_k",
            "set communication.compression to int8, fp8, int4 or auto",
        ),
        (
            {
                "communication": {"hierarchical": True, "compression": "int8"},
                "training__deterministic": True,
            },
            "communication.hierarchical: got true",
            "false or null with training.deterministic",
            "set training.deterministic to false",
        ),
        (
            {"parallel": {"mode": "zero2", "cpu_offload": True}},
            "parallel.cpu_offload: got true",
            "false where workers.resources.GPU = 0",
            "give each worker a GPU in workers.resources.GPU",
        ),
        (
            {"parallel": {"cpu_offload": True}, "workers__resources": {"GPU": 1}},
            "parallel.cpu_offload: got true",
            "false with parallel.mode = ddp",
            "set parallel.mode to fsdp or zero2",
        ),
        (
            {"parallel": {"mode": "zero2"}, "communication": {"compression": "top_k"}},
            "communication.compression: got 'top_k'",
            "one of none, bf16, fp8, int8, int4 with parallel.mode = zero2",
            "set parallel.mode to ddp",
        ),
        (
            {"parallel": {"gather": "bf16"}},
            "parallel.gather: got 'bf16'",
            "fp32 with parallel.mode = ddp",
            "set training.precision",
        ),
        (
            {"parallel": {"gather": "fp8"}},
            "parallel.gather: got 'fp8'",
            "fp32 with parallel.mode = ddp",
            "set training.precision",
        ),
        (
            {"parallel": {"mode": "fsdp", "shard": 2}},
            "parallel.shard: got 2",
            "auto with parallel.mode = fsdp",
            "set parallel.mode to hsdp",
        ),
        (
            {"parallel": {"mode": "hsdp", "shard": 4}, "workers": {"minimum": 4, "target": 6}},
            "workers.target: got 6",
            "a product of parallel.shard = 4 and parallel.replicate = auto, both at least 2",
            "choose two numbers",
        ),
        (
            {"parallel": {"mode": "hsdp", "shard": 4}, "workers": {"minimum": 4, "target": 4}},
            "workers.target: got 4",
            "both at least 2",
            "choose two numbers",
        ),
        (
            {"parallel": {"mode": "hsdp", "shard": 2}, "workers": {"minimum": 1, "target": 4}},
            "workers.minimum: got 1",
            "at least 2",
            "choose a smaller parallel.shard",
        ),
        (
            {"parallel": {"mode": "fsdp"}, "snapshot": {"every_steps": 2}},
            "snapshot.every_steps: got 2",
            "1 with parallel.mode = fsdp",
            "leave it out",
        ),
        (
            {"checkpoint": {"every_steps": 5}},
            "checkpoint.every_steps: got 5",
            "nothing where checkpoint.url is null",
            "set checkpoint.url",
        ),
        (
            {"checkpoint": {"resume": 5}},
            "checkpoint.resume: got 5",
            "nothing where checkpoint.url is null",
            "set checkpoint.url",
        ),
        *(
            (
                {"checkpoint": {name: value}},
                f"checkpoint.{name}: got {value!r}",
                "nothing where checkpoint.url is null",
                "set checkpoint.url",
            )
            for name, value in {
                "keep_last": 5,
                "keep_best": 1,
                "keep_every": 10,
                "best_metric": "loss",
                "every_s": "auto",
                "drill_every_s": 60.0,
                "accept": ["training.seed"],
            }.items()
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["training.seed", "training.max_step"]}},
            "checkpoint.accept: got 'training.max_step'",
            "the name of a setting that alters a run",
            "write training.max_steps, or remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["trainig.seed"]}},
            "checkpoint.accept: got 'trainig.seed'",
            "the name of a setting that alters a run",
            "write training.seed, or remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["entrypont"]}},
            "checkpoint.accept: got 'entrypont'",
            "the name of a setting that alters a run",
            "write entrypoint, or remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["workers.spares"]}},
            "checkpoint.accept: got 'workers.spares'",
            "the name of a setting that alters a run",
            "; remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["arg.lr"]}},
            "checkpoint.accept: got 'arg.lr'",
            "as args.lr, training.seed or data.url",
            "remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["communication.backend"]}},
            "checkpoint.accept: got 'communication.backend'",
            "the name of a setting that alters a run",
            "remove it",
        ),
        (
            {"checkpoint": {"url": "x", "accept": ["args"]}},
            "checkpoint.accept: got 'args'",
            "the name of a setting that alters a run",
            "remove it",
        ),
        (
            {"communication": {"warmup_steps": 5}},
            "communication.warmup_steps: got 5",
            "0 with communication.compression = none: every step is summed uncompressed",
            "choose a compression",
        ),
        (
            {"communication": {"compression": "int8", "per_parameter": {"*": "none"}}},
            "communication.compression: got 'int8'",
            "none with a pattern of communication.per_parameter that excludes every parameter",
            "narrow that pattern",
        ),
        (
            {
                "communication": {
                    "compression": "int8",
                    "error_feedback": True,
                    "per_parameter": {"*.bias": "none", "**": "none", "head.*": "int4"},
                }
            },
            "communication.error_feedback: got true",
            "false with a pattern of communication.per_parameter that excludes every parameter",
            "narrow that pattern",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    values: dict[str, object], got: str, expected: str, change: str
):
    with pytest.raises(ValidationError) as refusal:
        JobConfig.model_validate(settings_with(**values))
    message = str(refusal.value)
    assert got in message
    assert expected in message
    assert change in message


WORLD = st.integers(min_value=1, max_value=6)


@given(minimum=WORLD, target=WORLD, batch=WORLD)
def test_a_world_is_accepted_exactly_if_it_is_in_order(minimum: int, target: int, batch: int):
    workers = {"minimum": minimum, "target": target}
    training = {"max_steps": 1, "global_batch_size": batch, "microbatch_size": 1}
    settings = settings_with(workers=workers, training=training)
    if minimum <= target <= batch:
        JobConfig.model_validate(settings)
    else:
        with pytest.raises(ValidationError):
            JobConfig.model_validate(settings)


def test_what_needs_error_feedback_has_it_unasked():
    def feeds_back(**communication: object) -> bool:
        job = JobConfig.model_validate(settings_with(communication=communication))
        return job.communication.feeds_back

    assert feeds_back(compression="top_k")
    assert feeds_back(compression="power_sgd")
    assert feeds_back(compression="int8", error_feedback=True)
    assert not feeds_back(compression="int8")
    assert not feeds_back(per_parameter={"*": "bf16", "head.*": "top_k"}), "nothing goes as top_k"
    assert not feeds_back()


def test_a_configuration_that_was_written_out_is_accepted_again():
    job = JobConfig.model_validate(settings_with(communication={"compression": "int8"}))
    assert JobConfig.model_validate_json(job.model_dump_json()) == job
