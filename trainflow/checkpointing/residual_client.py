"""Ask Keepers for residuals that dead ranks have left in their nodes' memory.

Process: worker, parked between steps.  Thread: training.  Blocks: on a Keeper, for a bounded time.
"""

from trainflow.checkpointing.peer_memory import connect, request
from trainflow.checkpointing.residual_file import PartId
from trainflow.checkpointing.wire import receive_frames
from trainflow.epochs import PeerAddress, Version
from trainflow.errors import StateError


def list_parts(keeper: PeerAddress, version: Version) -> list[PartId]:
    """Return the parts that a node has of the residuals that go with a state.

    Raises:
        OSError: the Keeper does not answer.
        StateError: it answers nonsense.
    """
    epoch = version.epoch
    numbers = [version.step, epoch.incarnation, epoch.counter]
    with connect(keeper) as connection:
        answer = request(connection, {"op": "residuals", "version": numbers})
    return [PartId.unpack(tuple(map(int, part))) for part in answer["parts"]]


def fetch_part(keeper: PeerAddress, part: PartId, view: memoryview) -> None:
    """Fill ``view`` with a part's bytes, verified.

    Raises:
        OSError: the Keeper does not answer.
        StateError: it has the part no more, or one of another size.
    """
    with connect(keeper) as connection:
        answer = request(connection, {"op": "residual", "part": part.pack()})
        if answer["num_bytes"] != len(view):
            raise StateError(
                f"got residuals of {answer['num_bytes']} bytes, expected {len(view)}: the training "
                "function must build the same model on every rank"
            )
        receive_frames(connection, view)
