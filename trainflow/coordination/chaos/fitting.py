"""Whether a plan's faults can fall at all and on a job, and its run be judged. Pure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trainflow.config.chaos_plan import ChaosPlan, FaultConfig, ScheduledFault
from trainflow.config.job import JobConfig
from trainflow.config.problems import Problem, show, summarize
from trainflow.errors import ConfigError

_Check = Callable[[str, FaultConfig, JobConfig], Iterator[Problem]]


_OURS = {
    "partition": "only hosts that the campaign has made are cut off",
    "drop_node": "only nodes that the campaign has started are killed",
    "hang_store": "its processes reach the store by themselves",
    "fill_disk": "its head writes where it was started to",
    "skew_clock": "its coordinator and Keepers don't know of the campaign",
}
_LOCAL = ("file://", "local://")
_NODE_TAKING = ("partition", "drop_node")
ENDPOINT = "AWS_ENDPOINT_URL"
"""Environment variable with the address of the S3 server."""


@dataclass(frozen=True)
class Files:
    """Where a plan and a job were read from; "" where that isn't known."""

    plan: str = ""
    job: str = ""


def require_fit(
    plan: ChaosPlan,
    job: JobConfig,
    env: Mapping[str, str],
    *,
    on_own_cluster: bool,
    files: Files = Files(),
) -> None:
    """Refuse a plan that can't be carried out on a job.

    Args:
        plan: whose settings are right one by one.
        job: what is to run.
        env: the environment.
        on_own_cluster: the campaign starts its cluster.
        files: named where something is to be changed.

    Raises:
        ConfigError: with every problem, one a line.
    """
    of_plan = [
        *plan.conflicts(),
        *_check_faults(plan, job),
        *_check_nodes(plan, on_own_cluster=on_own_cluster),
        *_check_store(plan, job, env.get(ENDPOINT, "")),
    ]
    of_job = [*_check_job(job, on_own_cluster=on_own_cluster), *_check_reach(plan, job)]
    problems = [*_found_in(files.plan, of_plan), *_found_in(files.job, of_job)]
    if problems:
        raise ConfigError(summarize(problems))


def _found_in(file: str, problems: Iterable[Problem]) -> list[Problem]:
    return [replace(problem, source=file) for problem in problems]


def _check_faults(plan: ChaosPlan, job: JobConfig) -> Iterator[Problem]:
    checks: list[_Check] = [_check_rank, _check_step, _check_spares, _check_flip, _check_phase]
    checks.append(_check_kept)
    for where, fault in plan.faults:
        for check in checks:
            yield from check(where, fault, job)


def cpus_of_a_node(plan: ChaosPlan, job: JobConfig) -> int:
    """Return what each node declares: all workers fit on the others when one is gone."""
    num_workers = job.workers.most + job.workers.spares
    on_one = math.ceil(num_workers / max(1, plan.cluster.nodes - 1))  # none is on two nodes
    return max(1, math.ceil(on_one * job.workers.resources.CPU))


def _check_rank(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    last = job.workers.most - 1
    if fault.rank is not None and fault.rank > last:
        name = "maximum" if job.workers.maximum is not None else "target"
        expected = f"at most {last}, with workers.{name} = {job.workers.most}"
        yield Problem(f"{where}.rank", str(fault.rank), expected, "lower it, or have more workers")


def _check_step(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    """With the last step's commit the run is over: only what falls in that step still can."""
    if not isinstance(fault, ScheduledFault) or fault.at_step is None:
        return
    last, change = job.training.max_steps, "lower it, or have more steps"
    if fault.at_step > last:
        expected = f"at most training.max_steps = {last}"
        yield Problem(f"{where}.at_step", str(fault.at_step), expected, change)
    elif fault.at_step == last and not fault.is_ordered:
        expected = f"less than training.max_steps = {last}, with whose commit the run is over"
        if fault.kind in {"kill", "stop"} and fault.target == "member":
            change += ", or name a phase of that step"
        yield Problem(f"{where}.at_step", str(fault.at_step), expected, change)


def _check_spares(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    if fault.target == "spare" and not job.workers.spares:
        expected = "another target with workers.spares = 0"
        yield Problem(f"{where}.target", "'spare'", expected, "change it, or have spares")


def _check_phase(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    """A replicated state is read by rank 0 alone, which gives it to the others."""
    phase = fault.phase if isinstance(fault, ScheduledFault) else None
    if phase == "restoring" and fault.rank and not job.parallel.is_sharded:
        expected = f"0 with phase = restoring and parallel.mode = {job.parallel.mode}, where rank 0"
        change = "change it, or have it in phase healing"
        yield Problem(f"{where}.rank", str(fault.rank), f"{expected} reads for all", change)


def _check_kept(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    """Phases in which a state is kept, or read again, need one that is kept."""
    phase = fault.phase if isinstance(fault, ScheduledFault) else None
    in_memory = job.snapshot.every_steps is not None
    if phase == "snapshot" and not in_memory and job.checkpoint.url is None:
        expected = "another with snapshot.every_steps = null and checkpoint.url = null"
    elif phase == "restoring" and fault.target == "keeper" and not in_memory:
        expected = "another for a Keeper with snapshot.every_steps = null"
    else:
        return
    change = "change it, or have states kept: nobody comes to that place"
    yield Problem(f"{where}.phase", f"'{phase}'", expected, change)


def _check_flip(where: str, fault: FaultConfig, job: JobConfig) -> Iterator[Problem]:
    """A flipped bit is seen where all ranks hold the same sums, and it is known which those are."""
    if fault.kind != "flip":
        return
    compressed = job.communication.compression != "none" or job.communication.per_parameter
    wrong = {
        f"parallel.mode = {job.parallel.mode}": job.parallel.is_sharded,
        "compressed gradients (communication)": bool(compressed),
        "workers.target = 1": job.workers.target == 1,
        "GPUs (workers.resources.GPU)": job.workers.resources.GPU > 0,
    }
    for setting, is_so in wrong.items():
        if is_so:
            expected = f"another kind with {setting}"
            change = "leave it out: ranks don't all hold the same sums there, or it wasn't tried"
            yield Problem(f"{where}.kind", "'flip'", expected, change)


def _check_job(job: JobConfig, *, on_own_cluster: bool) -> Iterator[Problem]:
    resume = job.checkpoint.resume
    if resume not in {"auto", "never"}:
        expected = "auto or never: a campaign's runs begin at step 0, each in a folder of its own"
        yield Problem("checkpoint.resume", show(resume), expected, "leave it out")
    scaling = job.training.batch_scaling
    if scaling != "none":
        expected = "'none': which samples a step is to have is judged by its number alone"
        yield Problem("training.batch_scaling", show(scaling), expected, "leave it out")
    action = job.monitoring.anomalies.action
    if action == "rewind":
        expected = "'alert' or 'skip': which samples a step has is judged by its number alone"
        yield Problem("monitoring.anomalies.action", show(action), expected, "leave it out")
    gpus = job.workers.resources.GPU
    if gpus and on_own_cluster:
        expected = "0 on a cluster that the campaign starts, whose nodes declare CPUs alone"
        yield Problem("workers.resources.GPU", f"{gpus:g}", expected, "name one with --address")


def _check_nodes(plan: ChaosPlan, *, on_own_cluster: bool) -> Iterator[Problem]:
    for where, fault in plan.faults:
        if _is_by_keeper(fault) and not on_own_cluster:
            expected = f"null with target = keeper and --address: {_OURS['skew_clock']}"
            yield Problem(f"{where}.phase", "'restoring'", expected, "leave it, or --address, out")
        elif fault.kind in _OURS and not on_own_cluster:
            expected = f"another kind with --address: {_OURS[fault.kind]}"
            change = "leave it, or --address, out"
            yield Problem(f"{where}.kind", show(fault.kind), expected, change)
        elif fault.kind in _NODE_TAKING and plan.cluster.nodes < 2:  # noqa: PLR2004  and another
            expected = f"at least 2 with kind = {fault.kind}"
            got = str(plan.cluster.nodes)
            yield Problem("cluster.nodes", got, expected, "raise it")


def _is_by_keeper(fault: FaultConfig) -> bool:
    """Whether a Keeper does it by itself."""
    return isinstance(fault, ScheduledFault) and fault.is_ordered and fault.target == "keeper"


def _check_reach(plan: ChaosPlan, job: JobConfig) -> Iterator[Problem]:
    """Hosts that can be cut off are a network of their own, which leads nowhere."""
    urls = {
        "checkpoint.url": job.checkpoint.url,
        "data.url": job.data.url,
        "data.validation_url": job.data.validation_url,
    }
    for name, url in urls.items():
        is_outside = url is not None and "://" in url and not url.startswith(_LOCAL)
        if plan.has("partition") and is_outside:
            expected = "a local path with kind = partition, whose hosts reach nothing outside"
            yield Problem(name, show(url), expected, "change it, or leave this kind out")


def _check_store(plan: ChaosPlan, job: JobConfig, endpoint: str) -> Iterator[Problem]:
    """A store hangs behind a proxy, which stands where the processes of our cluster look for it."""
    url = job.checkpoint.url or ""
    wrong = {
        f"checkpoint.url = {show(job.checkpoint.url)}, which is no s3://": not url.startswith(
            "s3://"
        ),
        f"{ENDPOINT} = {show(endpoint)}, which is no http://HOST:PORT": not endpoint.startswith(
            "http://"
        ),
    }
    for where, fault in plan.faults:
        for setting, is_so in wrong.items():
            if fault.kind == "hang_store" and is_so:
                expected = f"another kind with {setting}"
                yield Problem(f"{where}.kind", "'hang_store'", expected, "change one of the two")
