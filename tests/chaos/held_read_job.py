"""The chaos job; what it reads from the memory of nodes waits until the test lets it go."""

from tests.chaos import chaos_job
from trainflow import Session
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.peer_memory import PeerMemory


def train(session: Session, args: chaos_job.Args) -> None:
    read = PeerMemory.read_into

    def read_when_let_go(memory: PeerMemory, chunk: Chunk, view: memoryview) -> None:
        chaos_job.hold(args.work_dir)
        read(memory, chunk, view)

    PeerMemory.read_into = read_when_let_go
    chaos_job.train(session, args)
