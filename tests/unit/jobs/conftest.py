import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.computation.data_feed import open_data_feed
from trainflow.computation.epoch_gate import EpochGate
from trainflow.computation.rank_context import RankContext
from trainflow.computation.reports import EvaluationReport, StepReport
from trainflow.computation.session import Session
from trainflow.computation.stamps import StampWriter
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.job import JobConfig
from trainflow.data.pack import PackOptions, pack_corpus
from trainflow.data.token_corpus import TokenCorpus
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, RecoveryPlan
from trainflow.errors import CoordinationError

SPEC = EpochSpec(EpochId(1, 1), ("alone",), "", 0)

AnyReport = StepReport | EvaluationReport
RunJob = Callable[..., list[AnyReport]]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    """A small packed corpus: one sentence with variations."""
    root = tmp_path_factory.mktemp("jobs")
    text = root / "text.txt"
    text.write_text("".join(f"Line {n} of many says: we count to {n * 7}.\n" for n in range(200)))
    options = PackOptions(vocab_size=300, sequence_length=16, held_out_every=10)
    pack_corpus(str(text), str(root / "corpus"), options=options)
    return TokenCorpus.open(str(root / "corpus"))


@pytest.fixture
def run_job(corpus: TokenCorpus, tmp_path: Path) -> RunJob:
    """Run an entrypoint as a world of one rank; returns what it reported."""

    def run(entrypoint: str, max_steps: int, **args: Any) -> list[AnyReport]:
        job = JobConfig.model_validate(
            {
                "name": "alone",
                "entrypoint": entrypoint,
                "args": args,
                "training": {
                    "max_steps": max_steps,
                    "global_batch_size": 4,
                    "microbatch_size": 2,
                    "deterministic": True,
                },
                "data": {"url": corpus.url},
                "workers": {"minimum": 1, "target": 1},
            }
        )
        reports: list[AnyReport] = []
        resolved = resolve_entrypoint(job.entrypoint)
        with _session_alone(job, tmp_path / "stamp", reports.append) as session:
            resolved.function(session, session.args)
        return reports

    return run


@contextmanager
def _session_alone(
    job: JobConfig, stamp: Path, report: Callable[[AnyReport], None]
) -> Iterator[Session]:
    """Make a session that is given an epoch of its own as soon as it waits for one."""
    connector = GlooConnector("127.0.0.1", connect_timeout_s=30.0, collective_timeout_s=30.0)

    def connect(spec: EpochSpec, rank: int) -> Group:
        transport = connector(dist.HashStore(), rank, spec.world_size)
        return Group(spec, rank, transport, lambda _epoch, _reason: None)

    def coordinate() -> None:
        with suppress(CoordinationError):  # the training function failed before it wanted an epoch
            gate.form(SPEC)
            gate.begin(RecoveryPlan(SPEC, INITIAL_VERSION))

    gate = EpochGate("alone", connect)
    args = resolve_entrypoint(job.entrypoint).check_args(job.args)
    stamps = StampWriter(stamp)
    feed = open_data_feed(job, args)
    context = RankContext(
        job=job,
        args=args,
        job_id=job.name,
        device=torch.device("cpu"),
        feed=feed,
        gate=gate,
        stamps=stamps,
        report=report,
        rehearsal=None,
    )
    coordinator = threading.Thread(target=coordinate)
    coordinator.start()
    try:
        yield Session(context)
    finally:
        gate.close()
        coordinator.join()
        feed.close()
        stamps.close()
