"""Two processes with a default process group, as plain DistributedDataParallel has them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD = 2
DEADLINE_S = 60.0

_processes = get_context("forkserver")  # one for all tests: what it loads is in harness.py


def _run(line: Any, rank: int, store: str, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    line.send(function(rank, *arguments))
    line.recv()  # the other may still need this one
    dist.destroy_process_group()


@contextmanager
def processes(directory: Path) -> Iterator[Callable[..., list[Any]]]:
    """Call a function in two ranks of a default process group; returns what each returned."""
    started: list[Any] = []

    def call(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        lines = []
        for rank in range(WORLD):
            line, theirs = _processes.Pipe()
            process = _processes.Process(
                target=_run,
                args=(theirs, rank, str(directory / f"store{len(started) // WORLD}"), function),
                kwargs={"arguments": arguments},
                daemon=True,
            )
            process.start()
            theirs.close()
            started.append(process)
            lines.append(line)
        results = []
        for line in lines:
            assert line.poll(DEADLINE_S), "no answer in time"
            results.append(line.recv())
        for line in lines:
            line.send("done")
        return results

    try:
        yield call
    finally:
        for process in started:
            process.kill()
            process.join()
