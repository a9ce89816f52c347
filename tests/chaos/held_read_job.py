"""The chaos job; it reads as from another node's memory, and waits until the test lets it go."""

from typing import Any

from tests.chaos import chaos_job
from trainflow import Session
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.peer_memory import PeerMemory
from trainflow.computation.rank_context import RankContext


def train(session: Session, args: chaos_job.Args) -> None:
    read = PeerMemory.read_into

    def read_when_let_go(memory: PeerMemory, chunk: Chunk, view: memoryview) -> None:
        chaos_job.hold(args.work_dir)
        read(memory, chunk, view)

    PeerMemory.read_into = read_when_let_go
    context: Any = RankContext
    context.own_memory = None  # it lies on this node, and is asked of the Keeper all the same
    chaos_job.train(session, args)
