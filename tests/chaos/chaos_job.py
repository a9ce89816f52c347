"""The job that the chaos tests kill: small, slow enough to be hit; writes down what it used."""

import gc
import json
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash
from pydantic import BaseModel
from torch import Tensor, nn

from tests.chaos.deaths import Death, DieAt
from trainflow import Session
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.aborted import StepAborted
from trainflow.computation.epoch_gate import SessionClosed
from trainflow.computation.shards import local_part
from trainflow.computation.step import Step
from trainflow.data.batch import Batch
from trainflow.epochs import INITIAL_EPOCH, EpochId

NUM_SAMPLES = 1500
WIDTH = 64


class Args(BaseModel):
    work_dir: Path
    hidden: int = 256
    """Width of the model."""
    sleep_s: float = 0.04
    """A microbatch waits for so long, until there is a file named hurry."""
    sleep_from: int = 1
    """Step from which on it does."""
    raise_at: int | None = None
    nan_at: tuple[int, ...] = ()
    spike_at: tuple[int, ...] = ()
    """Steps whose loss is a thousand times as large."""
    bad_samples: tuple[int, int] | None = None
    """The first of samples whose loss is a billion times as large, and the first after them."""
    hang_at: int | None = None
    """Step that rank 1 begins and stands still in, the first time."""
    hangs_again: bool = False
    """It does so each time."""
    stuck_rank: int | None = None
    """Rank that doesn't come out of the commit of that step, once the others have given it up."""
    die_after: int | None = None
    """Step that rank 0 commits, and whose report it doesn't live to send, the first time."""
    die_at: DieAt | None = None
    slow_rank: int | None = None
    """Rank whose first process waits for ``slow_s`` more, until there is a file named even."""
    slow_s: float = 0.08
    flip_at: int | None = None
    """Step in which a bit of rank 1's gradient flips, the first time."""
    wrong_from: int | None = None
    """Step from which on it does in each microbatch of the process that has rank 1 then."""
    hold_after_loop: int | None = None
    """Rank that holds in the code after the loop."""
    hold_when_stopped: int | None = None
    """Rank that holds when the run is stopped, before its training function ends."""


class Waves:
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        phase = torch.tensor(indices, dtype=torch.float32)[:, None]
        x = torch.sin(phase * torch.arange(1, WIDTH + 1) * 0.01)
        return {"x": x, "y": torch.cos(3 * x[:, :1])}


def open_dataset(_args: BaseModel) -> Waves:
    return Waves()


def build_model(hidden: int) -> nn.Module:
    first, last = nn.Linear(WIDTH, hidden), nn.Linear(hidden, 1)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), last)


def hang_once(session: Session, args: Args, step: int) -> None:
    """Stand still for good where the job is to, if a process has done so before only if again."""
    mark = args.work_dir / "hung"
    is_to = args.hangs_again or not mark.exists()
    if step == args.hang_at and session.rank == 1 and is_to:
        mark.touch()
        while True:
            SYSTEM_CLOCK.sleep(1)


def wait_for_data(args: Args, step: int) -> None:
    """Stand still while there is a file named stalled, which names the step from which on."""
    while is_stalled(args.work_dir / "stalled", step):
        SYSTEM_CLOCK.sleep(0.02)


def is_stalled(mark: Path, step: int) -> bool:
    try:
        return step >= int(mark.read_text())
    except FileNotFoundError:
        return False


def commit(session: Session, args: Args, step: Step) -> None:
    """Commit, or stand still for good in a commit that was aborted, if the job is to."""
    rank = session.rank
    try:
        step.commit()
    except StepAborted:
        if step.number == args.hang_at and rank == args.stuck_rank:
            while True:
                SYSTEM_CLOCK.sleep(1)
        raise


def die_unheard(session: Session, args: Args, step: int) -> None:
    """Have rank 0 die between a commit and its report, once all others have committed too."""
    mark = args.work_dir / "died"
    if step != args.die_after or mark.exists():
        return
    if session.rank != 0:
        (args.work_dir / f"committed-{session.rank}").touch()
        return
    while len(list(args.work_dir.glob("committed-*"))) < session.world_size - 1:
        SYSTEM_CLOCK.sleep(0.01)
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def wait(session: Session, args: Args, step: int) -> None:
    """Make a microbatch last as long as the job is to."""
    if step < args.sleep_from or (args.work_dir / "hurry").exists():
        return
    SYSTEM_CLOCK.sleep(args.sleep_s + (args.slow_s if is_slow(session, args) else 0.0))


def is_slow(session: Session, args: Args) -> bool:
    """Return whether this process is the slow one, which it stays whatever its rank."""
    chosen = is_chosen(args.work_dir / "slow", is_wanted=session.rank == args.slow_rank)
    return chosen and not (args.work_dir / "even").exists()


def is_chosen(mark: Path, *, is_wanted: bool) -> bool:
    """Return whether this process was the first that was wanted for something."""
    if is_wanted and not mark.exists():
        mark.write_text(str(os.getpid()))
    return mark.exists() and mark.read_text() == str(os.getpid())


class Flip:
    """Flips a bit where the job is to, unless a process has done so before."""

    def __init__(self, session: Session, args: Args, weight: nn.Parameter):
        self._session = session
        self._args = args
        self._mark = args.work_dir / "flipped"
        self.step = 0
        if args.flip_at is not None or args.wrong_from is not None:
            weight.register_hook(self._pass_on)

    def _pass_on(self, gradient: Tensor) -> Tensor:
        if not self._flips_now():
            return gradient
        flipped = gradient.clone()
        flipped.view(-1).view(torch.int32)[0] ^= 1 << 22
        return flipped

    def _flips_now(self) -> bool:
        is_first, begin = self._session.rank == 1, self._args.wrong_from
        if begin is not None and self.step >= begin:
            return is_chosen(self._args.work_dir / "wrong", is_wanted=is_first)
        flips = self.step == self._args.flip_at and is_first and not self._mark.exists()
        if flips:
            self._mark.touch()
        return flips


def hold(work_dir: Path) -> None:
    """Tell that this process waits, and wait until there is a file named release."""
    (work_dir / f"holding-{os.getpid()}").touch()
    while not (work_dir / "release").exists():
        SYSTEM_CLOCK.sleep(0.02)


@contextmanager
def holding_when_stopped(session: Session, args: Args) -> Generator[None]:
    """Hold where the job is to as the steps are left for good."""
    try:
        yield
    except SessionClosed:
        if session.rank == args.hold_when_stopped:
            hold(args.work_dir)
        raise


def find_factor(session: Session, args: Args, step: int, batch: Batch) -> float:
    """Return what a loss is multiplied by: 1, but where the job is to have an odd one."""
    if step in args.nan_at and session.rank == 1:
        return float("nan")
    first, end = args.bad_samples or (0, 0)
    if any(first <= index < end for index in batch.indices):
        return 1e9
    return 1000.0 if step in args.spike_at else 1.0


def describe(epoch: EpochId | None, step: int, **more: Any) -> str:
    """Return a line about a microbatch, if it has indices, else about a commit."""
    assert epoch is not None, "a rank in a step is in an epoch"
    return json.dumps({"step": step, "at": [epoch.incarnation, epoch.counter], **more}) + "\n"


def committed_in(session: Session) -> EpochId | None:
    """Return the epoch that committed the last step; if that comes again, not the present one."""
    version = session._state.version
    return None if version is None else version.epoch


def own_indices(batch: Batch) -> tuple[int, ...]:
    """Return the samples that this rank uses; what it only goes through is another rank's."""
    return () if batch.is_padding else batch.indices


def train(session: Session, args: Args) -> None:
    with holding_when_stopped(session, args):
        train_on_record(session, args)


def train_on_record(session: Session, args: Args) -> None:
    (args.work_dir / f"frozen-{os.getpid()}").write_text(str(gc.get_freeze_count()))
    model = session.prepare(
        lambda: build_model(args.hidden), lambda p: torch.optim.AdamW(p, lr=1e-3)
    )
    log = (args.work_dir / f"used-{os.getpid()}.jsonl").open("a", buffering=1)
    death = Death(session, args.die_at, args.work_dir)
    flip = Flip(session, args, next(model.parameters()))
    for step in session.steps():
        with step:
            hang_once(session, args, step.number)
            wait_for_data(args, step.number)
            death.begin(step.number)
            flip.step = step.number
            for batch in step.microbatches():
                wait(session, args, step.number)
                loss = ((model(batch.inputs["x"]) - batch.inputs["y"]) ** 2).mean()
                loss = loss * find_factor(session, args, step.number, batch)
                step.backward(loss, weight=len(batch.indices))
                log.write(describe(session.epoch, step.number, indices=own_indices(batch)))
            if step.number == args.raise_at and session.rank == 1:
                raise ValueError("the job's own mistake")
            commit(session, args, step)
            made_in = committed_in(session)
            if made_in != INITIAL_EPOCH:  # else another run has, which this one goes on from
                log.write(describe(made_in, step.number))
            die_unheard(session, args, step.number)
    if session.rank == args.hold_after_loop:
        hold(args.work_dir)
    digest = xxhash.xxh3_64()
    for parameter in model.parameters():
        digest.update(local_part(parameter).detach().cpu().numpy().tobytes())
    (args.work_dir / f"final-{session.rank}.txt").write_text(digest.hexdigest())
