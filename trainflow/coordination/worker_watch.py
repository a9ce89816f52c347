"""Hear of a worker's death: from Ray, and from its machine, which is faster when its node dies too.

Process: coordinator.  Thread: tasks of its event loop.  Fails: never unheard; what can't be watched
by its actor is lost, and what goes wrong in answering a death is told to `on_error`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from trainflow.coordination.background import Background
from trainflow.coordination.death_causes import explain_death
from trainflow.coordination.intake import Take
from trainflow.coordination.last_words import keep_last_words
from trainflow.coordination.messages import Crashed, WorkerDescription
from trainflow.coordination.presence import wait_gone
from trainflow.coordination.run_record import RunRecord

logger = logging.getLogger(__name__)

OnGone = Callable[[str, str], None]

_ASK_AGAIN_AFTER_S = 0.2


class WorkerWatch:
    """Watches all workers of a run, each from when it is asked for."""

    def __init__(
        self,
        record: RunRecord,
        *,
        on_gone: OnGone,
        take: Take,
        on_error: Callable[[str], None],
        is_quiet: Callable[[str], bool] = lambda _: False,
    ):
        """Begin.

        Args:
            record: of the run.
            on_gone: called with a worker's id and the cause when its process is gone.
            take: is given what a worker would have told whose constructor raised.
            on_error: called with a traceback if either of them raises.
            is_quiet: whether nothing has been heard of a node, by its id, for seconds.
        """
        self._record = record
        self._on_gone = on_gone
        self._take = take
        self._is_quiet = is_quiet
        self._warm: set[str] = set()
        self._background = Background(on_error)

    def begin(self, worker_id: str, actor: Any, is_there: Callable[[], bool]) -> None:  # noqa: ANN401  an actor handle
        """Watch a worker's actor, for as long as ``is_there`` says that it is wanted."""
        self._background.start(self._watch_actor(worker_id, actor, is_there))

    def begin_presence(self, description: WorkerDescription) -> None:
        """Watch a worker's machine, too: it has become warm."""
        self._warm.add(description.worker_id)
        self._background.start(self._watch_presence(description))

    def end(self) -> None:
        """Watch nobody any more."""
        self._background.cancel()

    async def _watch_actor(
        self,
        worker_id: str,
        actor: Any,  # noqa: ANN401  an actor handle
        is_there: Callable[[], bool],
    ) -> None:
        cause = "its actor exited"
        try:
            await _wait_exit(worker_id, actor, is_there)
        except RayActorError as error:
            if error.actor_init_failed:
                self._take(worker_id, Crashed(str(error)))
                return
            cause = self._explain(worker_id, error)
        except RayError as error:
            cause = self._explain(worker_id, error)
        except Exception as error:
            logger.exception("%s can't be watched", worker_id)
            cause = f"its actor can't be watched: {type(error).__name__}: {error}"
        if is_there():
            self._on_gone(worker_id, cause)
        self._warm.discard(worker_id)

    def _explain(self, worker_id: str, error: RayError) -> str:
        """Return why a worker has died, and keep the rest if it had yet to be warm."""
        cause = explain_death(error)
        if worker_id not in self._warm:
            keep_last_words(self._record.directory, worker_id, cause.line, cause.words)
        return cause.line

    async def _watch_presence(self, description: WorkerDescription) -> None:
        is_quiet = partial(self._is_quiet, description.node_id)
        try:
            cause = await wait_gone(description.host, description.presence_port, is_quiet)
        except Exception as error:
            logger.exception("%s can't be watched by its machine", description.worker_id)
            text = (
                f"{description.worker_id} is watched by Ray alone, as its machine can't be asked: "
                f"{type(error).__name__}: {error}"
            )
            self._record.add_event("watch_failed", text, worker=description.worker_id)
            return
        self._on_gone(description.worker_id, cause)


async def _wait_exit(worker_id: str, actor: Any, is_there: Callable[[], bool]) -> None:  # noqa: ANN401  as above
    """Wait until a worker exits, which fails; where it isn't reached, it is asked again.

    Whether it lives then tells its presence, its Keeper, or Ray in the end.
    """
    while is_there():
        try:
            return await actor.wait_exit.remote()
        except ActorUnavailableError as error:
            logger.info("%s is not reached: %s", worker_id, error)
        await asyncio.sleep(_ASK_AGAIN_AFTER_S)
    return None
